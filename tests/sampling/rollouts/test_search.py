"""Tree search: what is backed up and where it goes on, by hand; answers, episodes and teams as growing pieces."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama
from tests.sampling.rollouts.replay_session import small_model, world_session, world_tasks
from tests.sampling.rollouts.team_session import END as TEAM_END
from tests.sampling.rollouts.team_session import TeamSession, decoded, encoded
from tests.sampling.rollouts.tree_session import END, EngineSession, TreeSession, logprobs_of, tokens_of

import gxpo
from gxpo.algorithms.credit.value_delta import ValueDelta
from gxpo.base.errors import ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.forest.forest import ACTION, Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Completion, EpisodeRules, Request, Sampling, StreamKey, Task
from gxpo.parts.registry import CREDITS
from gxpo.sampling.rollouts.graph import Graph, Role
from gxpo.sampling.rollouts.search import Search, SearchReplay
from gxpo.sampling.rollouts.search_nodes import Grower, Node, SearchTree
from gxpo.sampling.rollouts.team_search import TeamSearch

SearchValue = CREDITS["search_value"]

A, B = Task("a", "a?"), Task("b", (4, 5))
PLAIN: dict[str, Any] = {"values": "mean", "backup": "all", "resume_at": "root"}


# ---------------------------------------------------------------- the search, by hand
class Script(Grower):
    """`ends`: outcome of the nodes that are terminal, by path; `surprise`: -log p of a node's one token (default 1)."""

    longest = 1

    def __init__(self, width: int, most: int, ends: dict[tuple[int, ...], float], **surprise: float) -> None:
        super().__init__(TreeSession(), width)
        self.most, self.ends, self.surprise = most, ends, {tuple(map(int, k[1:])): v for k, v in surprise.items()}
        self.expanded: list[tuple[int, ...]] = []
        self.tree: SearchTree

    def plant(self, tasks: Sequence[Task]) -> list[SearchTree]:
        (self.tree,) = super().plant(tasks)
        return [self.tree]

    def expand(self, batch):
        for tree, node in batch:
            self.expanded.append(node.path)
            for k in range(self.width):
                path = (*node.path, k)
                node.add(path, [-self.surprise.get(path, 1.0)], terminal=path in self.ends, is_cut=False)
                tree.n_tokens += 1

    def record(self, tree: SearchTree, leaf: Node, base: Node | None, shared: int) -> dict[str, Any]:
        return {
            "schema": "gxpo.rollouts/1",
            "group": tree.group,
            "id": self.name(tree, leaf),
            "turns": [{"action": [2] * leaf.depth}],
            "reward": self.ends[leaf.path],
        }

    def score_leaves(self, leaves):
        forest = Forest.from_records([self.record(t, leaf, None, 0) for t, leaf in leaves])
        return forest.replace(success=forest.outcome)

    def node(self, *path: int) -> Node:
        return next(n for n in self.tree.root.below() if n.path == path)


def test_search_backs_up_one_terminal_then_expands_the_best_node():
    ends = {(2,): 1.0, (0, 1): 0.0, (1, 0): 0.0, (1, 1): 0.0, (1, 2): 0.0}
    grower = Script(3, 3, ends, _11=0.5)
    forest = Search(terminals=3, width=3, greedy=True).search([A], grower)
    # 2 succeeds at depth 1: the root has (0 + 1) / 2. Nodes 0 and 1 score alike, the first is expanded; 01 fails at
    # depth 2: node 0 has -2/3 over 2 visits, the root keeps .5, over 2. Then 1 (parent's q .25) comes before 00 and 02
    # (-1/3); of its three failures the surest, 11, is backed up
    assert grower.expanded == [(), (0,), (1,)]
    assert forest.id == ["s3/a/0.2", "s3/a/0.0.1", "s3/a/0.1.1"] and forest.outcome.tolist() == [1.0, 0.0, 0.0]
    root, zero, one = grower.tree.root, grower.node(0), grower.node(1)
    assert (root.value, root.visits) == (0.5, 3)
    assert zero.value == pytest.approx(-2 / 3) and zero.visits == 2
    assert one.value == pytest.approx(-2 / 3) and one.visits == 2
    assert grower.node(1, 1).value == -1.0 and grower.node(1, 0).visits == 0 and grower.node(0, 0).visits == 1
    assert grower.session.budget.discarded == 4  # 00, 02, 10, 12


def test_without_a_terminal_it_goes_on_with_a_child():
    grower = Script(2, 4, {(0, 0, 1): 1.0})
    Search(terminals=1, width=2, greedy=True).search([A], grower)
    assert grower.expanded == [(), (0,), (0, 0)]


def test_children_are_drawn_by_softmax():
    # q 1/2, 0 and -1/2 with equal visits: probabilities 2000 e^q / sum, give or take 5 standard deviations
    part, tree = Search(), SearchTree(A, "a", "g", random.Random(0))
    children = [Node(tree.root, (k,), visits=2, value=v) for k, v in enumerate((1.0, 0.0, -1.0))]
    tree.root.visits = 1  # ln 1 = 0: no bonus
    drawn_paths = [part._choose(children, tree.root, tree.draws).path[0] for _ in range(2000)]
    total = sum(math.exp(q) for q in (0.5, 0.0, -0.5))
    for k, q in enumerate((0.5, 0.0, -0.5)):
        p = math.exp(q) / total
        assert abs(drawn_paths.count(k) - 2000 * p) < 5 * math.sqrt(2000 * p * (1 - p))


def test_plain_search_goes_down_from_the_root():
    ends = {(0,): 1.0, (1, 0): 0.0, (1, 1): 0.0, (2, 0): 1.0, (2, 1): 1.0, (2, 2): 1.0, (1, 2, 0): 1.0}
    grower = Script(3, 4, ends)
    forest = Search(terminals=7, width=3, greedy=True, **PLAIN).search([A], grower)
    # 0 ends; of 1 and 2, unvisited, the first; two of its three fail; then 2, unvisited; all of it ends, so 1 again
    assert grower.expanded == [(), (1,), (2,), (1, 2)]
    assert forest.id == [f"s3/a/0.{p}" for p in ("0", "1.0", "1.1", "2.0", "2.1", "2.2", "1.2.0")]
    one, two, root = grower.node(1), grower.node(2), grower.tree.root
    assert (one.value, one.visits, two.value, two.visits) == (-1.0, 3, 3.0, 3)
    assert (root.value, root.visits) == (3.0, 7)


def test_a_tree_in_which_everything_has_ended_is_done():
    grower = Script(2, 2, {(0,): 1.0, (1,): 0.0})
    for part in (Search(terminals=8, width=2, **PLAIN), Search(terminals=8, width=2)):
        assert part.search([A], grower).n_trajectories == (2 if part.backup == "all" else 1)


def test_an_unknown_outcome_counts_as_nothing():
    grower = Script(2, 3, {(0,): math.nan, (1, 0): 1.0, (1, 1): math.nan})
    with pytest.raises(Exception, match="finite"):
        Search(terminals=2, width=2).search([A], grower)  # a record says null, never nan
    assert Node(outcome=0.0).q == 0.0


# ---------------------------------------------------------------- answers
SEARCHES = st.fixed_dictionaries(
    {
        "width": st.integers(1, 3),
        "chunks": st.integers(1, 5),
        "terminals": st.integers(1, 5),
        "values": st.sampled_from(["weighted", "mean"]),
        "backup": st.sampled_from(["one", "all"]),
        "resume_at": st.sampled_from(["frontier", "root"]),
        "greedy": st.booleans(),
    }
)


@settings(max_examples=12)
@given(st.integers(0, 50), SEARCHES)
def test_tokens_have_their_contexts_logprob_and_are_stored_once(step, options):
    session = TreeSession(step=step)
    part = Search(**options)
    forest = part.grow([A, B], session)
    limit, chunk = session.sampling.max_new_tokens, -(-session.sampling.max_new_tokens // part.chunks)
    for r in range(forest.n_trajectories):
        context, tokens = list(session.encode(A if forest.task[r] == "a" else B)), tokens_of(forest, r)
        assert forest.context(int(forest.prompt_node[r])) == context
        for token, logprob in zip(tokens, logprobs_of(forest, r), strict=True):
            assert logprob == session.table(context)[token]
            context.append(token)
        assert END not in tokens[:-1] and len(tokens) <= limit
        assert bool(forest.truncated[r]) == (tokens[-1] != END)
        own_path_token = forest.path_token[forest.path_of(r)]
        assert forest.segment[own_path_token].tolist() == [i // chunk for i in range(len(tokens))]
    assert all(1 <= forest.group.count(g) <= part.terminals for g in set(forest.group))
    stored = int((forest.kind[forest.token_node] == ACTION).sum())
    spent = {g: i["tree_tokens"] for g, i in zip(forest.group, forest.info, strict=True)}
    assert stored <= sum(spent.values()) == session.budget.generated_tokens
    assert len(set(session.streams)) == len(session.streams)
    again = Forest.from_records(forest.to_records())
    assert torch.equal(again.path_token, forest.path_token) and again.info == forest.info
    assert torch.equal(again.segment, forest.segment)
    flat = forest.flatten()
    for credit in (SearchValue(), ValueDelta("pieces")):
        assert credit(forest, {}, 0).shape == credit(flat, {}, 0).shape


def test_values_of_the_forest_are_those_of_the_search():
    """Everything that was backed up is in the forest: the credit's values are the nodes'."""
    part, session = Search(terminals=6, width=3, chunks=4, greedy=True), TreeSession(step=1)
    kept_trees: list[SearchTree] = []
    settle = Search._settle

    class Seen(Search):
        def _settle(self, tree, node, grower):
            settle(self, tree, node, grower)
            kept_trees.append(tree)

    forest = Seen(**dataclasses.asdict(part)).grow([A], session)
    value = SearchValue(temperature=1.0, scale=False)(forest, {}, 0)
    tree = kept_trees[-1]
    sign = forest.success * 2 - 1
    mean = float(sign.mean())
    for r, leaf in enumerate(tree.leaves):
        entries, at = forest.path_of(r), 0
        for node in leaf.way():
            score = float(value[entries[at]]) + mean
            assert score == pytest.approx(leaf.outcome if node is leaf else math.tanh(node.value), abs=1e-9)
            at += node.tokens


def test_what_a_tree_is_depends_on_nothing_else_in_the_batch():
    for options in ({}, PLAIN):
        part = Search(terminals=5, width=3, chunks=4, **options)
        together, single_part = part.grow([A, B], TreeSession()), part.grow([B], TreeSession())
        rows = [r for r in range(together.n_trajectories) if together.task[r] == "b"]
        assert [tokens_of(together, r) for r in rows] == [
            tokens_of(single_part, r) for r in range(single_part.n_trajectories)
        ]
        assert [together.id[r] for r in rows] == single_part.id


def test_all_trees_expand_together():
    session = TreeSession()
    Search(terminals=4, width=2, chunks=4).grow([A, B], session)
    assert {len(requests) for _, requests in session.calls[:2]} == {2}
    assert session.streams[:2] == [StreamKey(5, 3, "a", 0, (0,)), StreamKey(5, 3, "a", 0, (1,))]


def test_a_task_that_is_drawn_twice_has_two_trees():
    forest = Search(terminals=3, width=2, chunks=3).grow([A, A], TreeSession())
    assert set(forest.group) == {"s3/a", "s3/a#1"}
    one, two = ([tokens_of(forest, r) for r, g in enumerate(forest.group) if g == name] for name in ("s3/a", "s3/a#1"))
    assert one != two


@settings(max_examples=6)
@given(st.integers(0, 50), st.integers(12, 60))
def test_the_budget_is_not_exceeded(step, budget):
    session = TreeSession(step=step)
    forest = Search(terminals=20, width=3, chunks=4, token_budget=budget).grow([A, B], session)
    assert all(info["tree_tokens"] <= budget for info in forest.info)
    with pytest.raises(ConfigError, match="token_budget=8"):
        Search(width=3, chunks=4, token_budget=8).grow([A], session)


def test_a_text_that_ends_answers_may_lie_across_two_pieces():
    session = TreeSession(sampling=Sampling(max_new_tokens=12, stop=("12",)), end=-9.0)
    session.bias |= {1: -9.0, 2: -9.0}

    def complete(prompt, key, sampling):  # each piece is the one token 1, or 2 after it
        token = 2 if prompt[-1] == 3 else 3
        return Completion([token], [-1.0], "length")

    session.complete = complete  # type: ignore[method-assign]  # a script in the place of the table
    session.decode = lambda tokens: "".join({3: "1", 2: "2"}.get(t, "") for t in tokens)  # type: ignore[method-assign]
    forest = Search(terminals=1, width=1, chunks=12).grow([B], session)
    assert tokens_of(forest, 0) == [3, 2] and not bool(forest.truncated[0])


def test_the_support_is_there_for_every_token():
    session = TreeSession(sampling=Sampling(max_new_tokens=12, top_k=2))
    forest = Search(terminals=4, width=2, chunks=4).grow([A], session)
    support = forest.extras["support"][forest.path_token]
    assert torch.equal(support[:, 0], forest.token[forest.path_token])


def test_a_packed_search_is_scored_as_it_was_sampled():
    model = clean_llama(vocab_size=16)
    session = EngineSession(model, sampling=Sampling(max_new_tokens=9))
    forest = Search(terminals=5, width=2, chunks=3).grow([B], session)
    learner = TorchLearner(model, lr=1e-3)
    actual = learner.outputs(forest, ("logprob",))["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)
    flat = learner.outputs(forest.flatten(), ("logprob",))["logprob"]
    assert torch.allclose(actual, flat, rtol=0, atol=1e-10)
    m = gxpo.method("deepsearch", {"objective.aggregate": "token_mean"})
    losses = []
    for f in (forest, forest.flatten()):
        x = actual.clone().requires_grad_()
        out = m.loss(f, gxpo.PolicyTokens(x, actual), advantages=m.advantages(forest)).value
        losses.append((float(out.detach()), torch.autograd.grad(out, x)[0]))
    assert losses[0][0] == pytest.approx(losses[1][0], abs=1e-12) and torch.equal(losses[0][1], losses[1][1])


@pytest.mark.parametrize(
    "bad", [{"terminals": 0}, {"width": 0}, {"chunks": 0}, {"values": "sum"}, {"backup": "two"}, {"resume_at": "x"},
            {"selection": "best"},            {"floor": 2.0}, {"exploration": -1.0}, {"token_budget": -1}],
)  # fmt: skip
def test_refusals(bad):
    with pytest.raises(ConfigError, match=f"rollout.{next(iter(bad))}|rollout.floor"):
        Search(**bad)


# ---------------------------------------------------------------- episodes
@pytest.fixture(scope="module")
def world():
    with EnvPool(source("keydoor", {"style": "bare", "size": 4, "max_turns": 4}), workers=0) as pool:
        yield pool


class Replayed:
    """The same world without snapshots."""

    def __init__(self, pool: EnvPool) -> None:
        self.pool, self.provides = pool, tuple(p for p in pool.provides if p != "snapshots")

    def __getattr__(self, name: str):
        return getattr(self.pool, name)


def searched(envs, **options: Any) -> tuple[Forest, Any]:
    rules = EpisodeRules(max_turns=4)
    session = world_session(envs, rules=rules, sampling=Sampling(max_new_tokens=2), step=1)
    return Search(terminals=5, width=2, **options).grow(world_tasks(session, 2), session), session


@pytest.mark.parametrize("options", [{}, PLAIN], ids=["weighted", "plain"])
def test_turns_of_an_environment_are_pieces(world, options):
    forest, session = searched(world, **options)
    actual = TorchLearner(small_model(), lr=1e-3).outputs(forest, ("logprob",))["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)
    stored = int((forest.kind[forest.token_node] == ACTION).sum())
    assert stored < forest.n_entries and stored <= session.budget.generated_tokens
    spent = {g: i["tree_tokens"] for g, i in zip(forest.group, forest.info, strict=True)}
    assert sum(spent.values()) == session.budget.generated_tokens
    for r, info in enumerate(forest.info):
        assert len(info["path"]) == int((forest.step_trajectory == r).sum())
    assert bool(forest.scored.all())


def test_snapshots_and_replayed_actions_lead_to_one_forest(world):
    one, two = searched(world)[0], searched(Replayed(world))[0]
    assert one.id == two.id and torch.equal(one.path_token, two.path_token) and torch.equal(one.token, two.token)
    assert one.state_names == two.state_names and torch.equal(one.outcome, two.outcome)


def test_turns_of_siblings_form_a_group_under_their_parent(world):
    forest, session = searched(world, group_unit="siblings", **PLAIN)
    full_value, _ = searched(world, **PLAIN)
    through = {
        (task, *info["path"][:depth])
        for task, info in zip(full_value.task, full_value.info, strict=True)
        for depth in range(1, len(info["path"]) + 1)
    }
    rows = list(zip(forest.task, forest.info, forest.group, strict=True))
    assert {(task, *info["path"]) for task, info, _ in rows} == through
    above = {(task, *info["path"][:-1]) for task, info, _ in rows}
    assert len(above) == len(set(forest.group)) == len({(t, *i["path"][:-1], g) for t, i, g in rows})
    assert bool((forest.outcome.abs() <= 1).all()) and session.budget.discarded >= 0


# ---------------------------------------------------------------- teams
class ByPath(TeamSession):
    """The script is told which child it speaks for."""

    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> list[list[Completion]]:
        self.requests.append(list(requests))
        out = []
        for r in requests:
            message = [(*encoded(self.script(r.policy, decoded(r.prompt), s.path[-1])), TEAM_END) for s in r.streams]
            out.append([Completion(list(t), [-0.5] * len(t), "stop", policy_version=2) for t in message])
            self.budget.generated_tokens += sum(map(len, message))
        return out


PAIR = Graph(
    (
        Role("writer", "Q:{prompt}"),
        Role("editor", "E:{writer}", answer="{editor}"),
    )
)


def team(**options: Any) -> tuple[Forest, ByPath]:
    def script(policy: str, context: str, child: int) -> str:
        return f"w{child}" if context.startswith("Q:") else f"{context[2:]}e{child}"

    session = ByPath(script, lambda task, text: float(text in ("w0e1", "w1e0", "w1e1")))
    part = TeamSearch(terminals=4, width=2, graph=PAIR, greedy=True, **PLAIN, **options)
    return part.grow(session.asked(Task("t", "q", "x")), session), session


def test_calls_of_a_team_are_pieces():
    forest, session = team()
    # both writers' texts are gone on with, two editors each
    assert sorted(info["answer"] for info in forest.info) == ["w0e0", "w0e1", "w1e0", "w1e1"]
    assert forest.outcome.tolist() == [0.0, 1.0, 1.0, 1.0] and set(forest.group) == {"s3/t"}
    assert forest.agent_names == ("writer", "editor") and forest.n_steps == 8
    stored = int((forest.kind[forest.token_node] == ACTION).sum())
    assert stored == session.budget.generated_tokens == 2 * 3 + 4 * 5  # a writer's text is stored once
    again = Forest.from_records(forest.to_records())
    assert torch.equal(again.path_token, forest.path_token)
    credit = ValueDelta("pieces")(forest, {}, 0)
    # V: root 3/4; after w0 1/2, after w1 1
    values = [credit[forest.path_of(r)].tolist() for r in range(4)]
    assert values[0] == pytest.approx([-0.25] * 3 + [-0.5] * 5) and values[1] == pytest.approx([-0.25] * 3 + [0.5] * 5)
    assert values[2] == pytest.approx([0.25] * 3 + [0.0] * 5)


def test_a_frozen_role_says_one_thing():
    forest, session = team(frozen_roles=["editor"])
    assert sorted(info["answer"] for info in forest.info) == ["w0e0", "w1e0"]
    assert [len(r.streams) for r in session.requests[1]] == [1]
    assert not bool(forest.path_trainable.all())


def test_held_out_tasks_are_attempted_by_the_team():
    assert TeamSearch(graph=PAIR).evaluation(3).group_size == 3 and TeamSearch(graph=PAIR).max_turns == 2


# ---------------------------------------------------------------- replay
class Kept(TreeSession):
    """As the trainer's: an outcome that a row brings is kept."""

    def __init__(self, right: Any, **options: Any) -> None:
        super().__init__(**options)
        self.right = right

    def score(self, forest: Forest, texts: Sequence[str] | None = None) -> Forest:
        message = [self.decode(tokens_of(forest, r)) for r in range(forest.n_trajectories)]
        own_messages = torch.tensor([float(self.right(text)) for text in message], dtype=torch.float64)
        keep = forest.scored
        return forest.with_rewards(
            torch.where(keep, forest.outcome, own_messages), success=torch.where(keep, forest.success, own_messages)
        )


def test_a_solution_stands_beside_where_nothing_is_found():
    part = SearchReplay(terminals=4, width=2, chunks=4, max_success_rate=1.0, replays=2)
    first = Kept(lambda text: text[-1:] in ("2", "4", "6", "8"), step=1)
    fresh = first.score(part.grow([A, B], first))
    solved = {t: int(sum(forest_success(fresh, t))) for t in ("a", "b")}
    assert min(solved.values()) > 0 and "replay" not in fresh.origin
    part.observe(fresh)
    state = part.state_dict()
    other = SearchReplay(terminals=4, width=2, chunks=4, max_success_rate=1.0, replays=2)
    other.load_state_dict(state)
    second = Kept(lambda text: False, step=2)
    grown = [p.grow([A, B], Kept(lambda text: False, step=2)) for p in (part, other)]
    assert grown[0].to_records() == grown[1].to_records()
    forest = grown[0]
    for task in ("a", "b"):
        rows = [r for r in range(forest.n_trajectories) if forest.task[r] == task and forest.origin[r] == "replay"]
        assert len(rows) == min(2, solved[task])
        for r in rows:
            assert float(forest.outcome[r]) == 1.0 and forest.group[r] == f"s2/{task}"
            assert tokens_of(forest, r) in [tokens_of(fresh, q) for q in range(fresh.n_trajectories)]
    credit = SearchValue()(second.score(forest), {}, 0)
    assert bool((credit[forest.to_path(forest.success, "R") >= 1] > 0).all())


def forest_success(forest: Forest, task: str) -> list[float]:
    return [s for s, t in zip(forest.success.tolist(), forest.task, strict=True) if t == task]


def test_easy_tasks_are_not_stored():
    part = SearchReplay(terminals=4, width=2, chunks=4, max_success_rate=0.25)
    session = Kept(lambda text: True, step=1)
    part.observe(session.score(part.grow([A], session)))
    assert part.state_dict() == {"stored": []}
    with pytest.raises(ConfigError, match="replays"):
        SearchReplay(replays=0)
