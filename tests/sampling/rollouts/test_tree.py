"""Trees: branches as declared forks, points, budgets, and one forward pass for what is shared."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import tree_relative_credit
from tests.learning.llamas import clean_llama
from tests.sampling.rollouts.branching_session import kinds, pool, replay, session, steps_of, tasks_of
from tests.sampling.rollouts.tree_session import COMMA, END, EngineSession, TreeSession, logprobs_of, tokens_of

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import ACTION, Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EpisodeRules, Sampling, StreamKey, Task
from gxpo.parts.registry import CREDITS
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.tree import Tree, step_ends
from gxpo.training.models import tiny_model

Tree = partial(Tree, delimiter=",")  # which ends the steps here

NodeValue = CREDITS["node_value"]

A, B = Task("a", "a?"), Task("b", (4, 5))
WHERE = st.sampled_from(["step", "surprisal"])


def chains(forest: Forest) -> dict[tuple[str, int, tuple[int, ...]], int]:
    """(group, tree, path) -> trajectory."""
    return {
        (forest.group[r], forest.info[r]["tree"], tuple(forest.info[r]["path"])): r
        for r in range(forest.n_trajectories)
    }


# ---------------------------------------------------------------- what a branch is
@settings(max_examples=15)
@given(st.integers(0, 50), WHERE, st.integers(1, 3), st.integers(1, 3))
def test_tokens_have_their_contexts_logprob_and_are_stored_once(step, where, rounds, branches):
    session = TreeSession(step=step)
    forest = Tree(trees=2, rounds=rounds, expansions=2, branches=branches, branch_at=where).grow([A, B], session)
    most = 2 * 2 * (1 + rounds * 2 * branches)
    assert forest.n_trajectories == most or (where == "surprisal" and forest.n_trajectories < most)
    limit = session.sampling.max_new_tokens
    for r in range(forest.n_trajectories):
        context, tokens = list(session.encode(A if forest.task[r] == "a" else B)), tokens_of(forest, r)
        assert forest.context(int(forest.prompt_node[r])) == context
        for token, logprob in zip(tokens, logprobs_of(forest, r), strict=True):
            assert logprob == session.table(context)[token]
            context.append(token)
        assert len(tokens) <= limit and END not in tokens[:-1]
        assert forest.truncated[r] == (tokens[-1] != END) == (forest.step_finish[r] == "length")
        assert (len(tokens) == limit) or not forest.truncated[r]
    stored = int((forest.kind[forest.token_node] == ACTION).sum())
    assert stored == session.budget.generated_tokens == sum(info["generated"] for info in forest.info)
    assert stored <= forest.n_entries
    again = Forest.from_records(forest.to_records())
    assert torch.equal(again.path_token, forest.path_token) and again.info == forest.info


@settings(max_examples=15)
@given(st.integers(0, 50), WHERE)
def test_branch_keeps_the_beginning_of_the_chain_it_leaves(step, where):
    forest = Tree(rounds=3, branch_at=where).grow([A], TreeSession(step=step))
    known_chains = chains(forest)
    for (group, tree, path), r in known_chains.items():
        mine = forest.path_token[forest.path_of(r)].tolist()
        own_mine = mine[len(mine) - forest.info[r]["generated"] :]
        if path:
            base = forest.path_token[forest.path_of(known_chains[group, tree, path[:-1]])].tolist()
            kept_count = len(mine) - len(own_mine)
            assert mine[:kept_count] == base[:kept_count] and not set(own_mine) & set(base)
        else:
            assert own_mine == mine


def test_without_rounds_it_is_independent():
    trees, plain = TreeSession(), TreeSession()
    one, other = Tree(trees=4, rounds=0).grow([A, B, A], trees), Independent(4).grow([A, B, A], plain)
    assert trees.streams == plain.streams
    for name in ("group", "task", "prompt_text", "sampling", "step_finish", "state_names"):
        assert getattr(one, name) == getattr(other, name)
    for name in ("token", "path_token", "truncated", "state", "step_state", "policy_version"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert torch.equal(one.path_behaviour_logprob, other.path_behaviour_logprob)


def test_what_a_tree_is_depends_on_nothing_else_in_the_batch():
    part = Tree(rounds=2)
    together, alone = part.grow([A, B], TreeSession()), part.grow([B], TreeSession())
    rows = [r for r in range(together.n_trajectories) if together.task[r] == "b"]
    assert [tokens_of(together, r) for r in rows] == [tokens_of(alone, r) for r in range(alone.n_trajectories)]


def test_streams_are_named_by_the_way_to_the_branch():
    session = TreeSession()
    Tree(trees=2, rounds=2, branch_at="surprisal").grow([A], session)
    assert len(set(session.streams)) == len(session.streams) == 10
    assert session.streams[:2] == [StreamKey(5, 3, "a", 0), StreamKey(5, 3, "a", 1)]
    assert {key.path[:-1] for key in session.streams if key.path} <= {key.path for key in session.streams}


def test_the_support_is_inherited_with_the_tokens():
    session = TreeSession(sampling=Sampling(max_new_tokens=12, top_k=2))
    forest = Tree(rounds=2, branch_at="surprisal").grow([A], session)
    support = forest.extras["support"][forest.path_token]
    assert torch.equal(support[:, 0], forest.token[forest.path_token])


# ---------------------------------------------------------------- points
def test_steps_end_with_the_token_that_completes_the_delimiter():
    text = {1: ",", 2: "a", 3: "b\n", 4: "\n", 5: "c\n\nd", END: ""}
    decode = lambda ids: "".join(text[i] for i in ids)  # noqa: E731
    assert step_ends([2, 1, 2, 2, 1, 0], decode, ",") == [2, 5]
    assert step_ends([2, 1], decode, ",") == []  # the end of a leaf is no point
    assert step_ends([3, 4, 4, 4, 5, 2], decode, "\n\n") == [2, 4, 5]
    assert step_ends([], decode, ",") == []


@settings(max_examples=15)
@given(st.integers(0, 50))
def test_steps_are_drawn_among_the_prompt_and_the_ends_of_steps(step):
    forest = Tree(trees=1, rounds=1, expansions=12).grow([A], TreeSession(step=step))
    first = tokens_of(forest, 0)
    points = {0} | {i + 1 for i, token in enumerate(first[:-1]) if token == COMMA}
    drawn_counts = {len(tokens_of(forest, r)) - forest.info[r]["generated"] for r in range(1, 13)}
    assert drawn_counts <= points


def test_points_are_uniform():
    # 600 draws among k points: each is drawn 600 / k times, give or take 5 standard deviations
    session = TreeSession(end=-9.0)
    forest = Tree(trees=1, rounds=1, expansions=600).grow([A], session)
    first = tokens_of(forest, 0)
    points = [0] + [i + 1 for i, token in enumerate(first[:-1]) if token == COMMA]
    drawn_counts = [len(tokens_of(forest, r)) - forest.info[r]["generated"] for r in range(1, 601)]
    assert len(points) > 2
    p = 1 / len(points)
    assert all(abs(drawn_counts.count(k) - 600 * p) < 5 * (600 * p * (1 - p)) ** 0.5 for k in points)


@settings(max_examples=15)
@given(st.integers(0, 50), st.integers(1, 3), st.integers(1, 2))
def test_surprisal_expands_the_least_likely_tokens_each_once(step, rounds, branches):
    n = 2
    forest = Tree(trees=1, rounds=rounds, expansions=n, branches=branches, branch_at="surprisal").grow(
        [A], TreeSession(step=step)
    )
    order = list(chains(forest).values())
    used: set[int] = set()
    end = 1
    for _ in range(rounds):
        grown = order[:end]
        tokens = {t for r in grown for t in forest.path_token[forest.path_of(r)].tolist()} - used
        least = sorted(tokens, key=lambda t: float(forest.behaviour_logprob[t]))[:n]
        actual = []
        end += len(least) * branches
        for r in order[len(grown) : end]:
            path = list(forest.info[r]["path"])
            base = forest.path_token[forest.path_of(chains(forest)[forest.group[r], 0, tuple(path[:-1])])].tolist()
            actual.append(base[len(tokens_of(forest, r)) - forest.info[r]["generated"]])
        assert actual == [t for t in least for _ in range(branches)]
        used |= set(least)
    assert end == len(order)


# ---------------------------------------------------------------- budget and leaves
def own(forest: Forest) -> list[tuple[int, int]]:
    """(kept, generated) of each trajectory."""
    return [(len(tokens_of(forest, r)) - i["generated"], i["generated"]) for r, i in enumerate(forest.info)]


def test_token_budget_fits_full_length_branches_one_by_one():
    part = {"trees": 1, "rounds": 1, "expansions": 8}
    everything = own(Tree(**part).grow([A], TreeSession(end=-99.0)))
    assert all(kept_value + generated == 12 for kept_value, generated in everything)
    # no branch ends early, so what is reserved is what is spent: as many branches as fit, one after the other
    spent = [*itertools.accumulate(generated for _, generated in everything)]
    for budget in range(12, 100):
        fit = [e for e, total in zip(everything, spent, strict=True) if total <= budget]
        session = TreeSession(end=-99.0)
        assert own(Tree(**part, token_budget=budget).grow([A], session)) == fit
        assert session.budget.generated_tokens == sum(generated for _, generated in fit) <= budget


@settings(max_examples=25)
@given(st.integers(0, 60), WHERE, st.integers(24, 90))
def test_a_prompt_is_done_when_the_next_branch_might_not_fit(step, where, budget):
    part = {"trees": 2, "rounds": 1, "expansions": 3, "branch_at": where}
    without = Tree(**part).grow([A, B], TreeSession(step=step))
    within = Tree(**part, token_budget=budget).grow([A, B], TreeSession(step=step))
    for group in set(without.group):
        # all branches leave a first chain: the first of every tree, then the second of every tree...
        planned = sorted((path, tree) for g, tree, path in chains(without) if g == group)
        begun = {(path, tree) for g, tree, path in chains(within) if g == group}
        assert begun == set(planned[: len(begun)])
        left = budget - sum(own(within)[r][1] for k, r in chains(within).items() if k[0] == group)
        assert left >= 0
        for path, tree in planned[len(begun) : len(begun) + 1]:
            kept_value, _ = own(without)[chains(without)[group, tree, path]]
            assert 12 - kept_value > left


@settings(max_examples=15)
@given(st.integers(0, 60), WHERE, st.integers(24, 90))
def test_a_budget_is_never_exceeded_in_any_round(step, where, budget):
    session = TreeSession(step=step)
    part = Tree(trees=2, rounds=20, expansions=2, branch_at=where, token_budget=budget)
    forest = part.grow([A, B], session)
    for group in set(forest.group):
        spent = sum(info["generated"] for info, g in zip(forest.info, forest.group, strict=True) if g == group)
        assert spent <= budget
    assert session.budget.generated_tokens == sum(info["generated"] for info in forest.info)


def test_kept_leaves_are_some_of_all_and_the_others_are_charged():
    everything = Tree(trees=2, rounds=2).grow([A, B], TreeSession())
    session = TreeSession()
    part = Tree(trees=2, rounds=2, keep=3)
    forest = part.grow([A, B], session)
    assert part.group_size == 6 and forest.n_trajectories == 12
    assert session.budget.discarded == everything.n_trajectories - 12
    assert session.budget.generated_tokens == sum(g for _, g in own(everything))
    of = dict(zip(everything.id, range(everything.n_trajectories), strict=True))
    for r, name in enumerate(forest.id):
        assert tokens_of(forest, r) == tokens_of(everything, of[name])
    trees = [(forest.group[r], forest.info[r]["tree"]) for r in range(12)]
    assert all(trees.count(t) == 3 for t in trees)
    assert Tree(keep=9).grow([A], TreeSession()).n_trajectories == 6


@settings(max_examples=15)
@given(st.integers(0, 40))
def test_trees_of_a_prompt_are_told_apart(step):
    forest = Tree(trees=3).grow([A, B], TreeSession(step=step))
    ids = forest.ids("group", "info.tree", axis="R").tolist()
    listed_forests = [(forest.group[r], forest.info[r]["tree"]) for r in range(forest.n_trajectories)]
    assert len(set(ids)) == len(set(listed_forests)) == len(set(zip(ids, listed_forests, strict=True))) == 6


# ---------------------------------------------------------------- one forward pass for what is shared
@pytest.fixture(scope="module")
def model():
    return clean_llama(vocab_size=10, eos_token_id=END)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["step", "surprisal"])
def test_packed_equals_flattened_in_loss_and_gradient(model, where):
    session = EngineSession(model, sampling=Sampling(max_new_tokens=16))
    forest = session.score(Tree(trees=3, rounds=2, branch_at=where).grow([A, B], session))
    # the engine drew every branch in the middle of an action: its log-probs are the learner's of the whole path
    packed = TorchLearner(model, lr=0.0)
    x = packed.outputs(forest)["logprob"]
    assert torch.allclose(x, forest.path_behaviour_logprob, rtol=0, atol=1e-9)
    credit = tree_relative_credit()(forest, {}, 0) + NodeValue()(forest, {}, 0)
    assert float(credit.abs().max()) > 0.1
    rows = forest.path_trajectory

    def loss(x):
        ratio = (x["logprob"] - forest.path_behaviour_logprob - 0.1).exp()
        gain = torch.minimum(ratio * credit, ratio.clamp(0.95, 1.05) * credit)
        return -(gain / torch.bincount(rows)[rows]).sum() / forest.n_trajectories

    gradient = packed.gradient(forest, loss)
    for learner, other in (
        (packed, forest.flatten()),
        (TorchLearner(model, lr=0.0, layout="flat"), forest),
        (TorchLearner(model, lr=0.0, layout="flat"), forest.flatten()),
    ):
        assert abs(float(loss(learner.outputs(other)) - loss({"logprob": x}))) < 1e-10
        actual = learner.gradient(other, loss)
        assert max(float((actual[n] - gradient[n]).abs().max()) for n in gradient) < 1e-10
    info = packed.step(forest, loss)
    assert info.tokens_forward < info.tokens_flat
    unshared = packed.step(forest.flatten(), loss)
    assert info.tokens_forward < unshared.tokens_forward


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("field", "value"),
    [("trees", 0), ("rounds", -1), ("expansions", 0), ("branches", 0), ("keep", -1), ("token_budget", -1),
     ("branch_at", "root"), ("delimiter", "")],
)  # fmt: skip
def test_impossible_settings_are_refused(field, value):
    with pytest.raises(ConfigError, match=f"rollout.{field}"):
        Tree(**{field: value})


def test_a_budget_that_does_not_hold_the_first_chains_is_refused():
    with pytest.raises(ConfigError, match=r"token_budget=23 does not hold the first 2 attempts of up to 1 turns of 12"):
        Tree(token_budget=23).grow([A], TreeSession())


def test_call_budget_below_the_first_chains_is_refused():
    with pytest.raises(ConfigError, match=r"call_budget=1 does not hold the first 2 attempts"):
        Tree(call_budget=1).grow([A], TreeSession())


@pytest.mark.parametrize("where", ["step", "surprisal"])
def test_a_budget_of_calls_bounds_the_chains(where):
    without = own(Tree(rounds=2, branch_at=where).grow([A, B], TreeSession()))
    for calls in range(2, 11):
        forest = Tree(rounds=2, branch_at=where, call_budget=calls).grow([A, B], TreeSession())
        assert [forest.group.count(g) for g in dict.fromkeys(forest.group)] == [calls, calls]
    assert own(Tree(rounds=2, branch_at=where, call_budget=10).grow([A, B], TreeSession())) == without


# ---------------------------------------------------------------- branches that begin at the prompt
@pytest.mark.slow
@pytest.mark.parametrize("where", ["step", "surprisal"])
def test_some_branches_begin_at_the_prompt_instead(where):
    options = {"trees": 1, "rounds": 7, "expansions": 1, "branch_at": where}
    never, always = (Tree(**options, root_probability=p).grow([A, B], TreeSession()) for p in (0.0, 1.0))
    assert all(kept_value == 0 for kept_value, _ in own(always)) and any(kept_value for kept_value, _ in own(never))
    # without exploration it is as if there were no such setting
    assert [tokens_of(never, r) for r in range(16)] == [
        tokens_of(f, r) for f in [Tree(**options).grow([A, B], TreeSession())] for r in range(16)
    ]
    begun = []
    for step in range(80):
        forest = Tree(**options, root_probability=0.5).grow([A], TreeSession(step=step, end=-9.0))
        begun += [kept_value == 0 for kept_value, _ in own(forest)[1:]]
    share = sum(begun) / len(begun)  # "step" draws the prompt as a point, too
    low = 0.5 + (0 if where == "surprisal" else 0.02)
    assert low - 5 * (0.25 / len(begun)) ** 0.5 < share < 0.85


def test_a_token_that_was_not_branched_at_waits():
    """Of 560 branches about half leave at the least likely token: as many distinct points as there are branches."""
    for step in range(20):
        forest = Tree(trees=1, rounds=7, expansions=1, branch_at="surprisal", root_probability=0.5).grow(
            [A], TreeSession(step=step)
        )
        order = list(chains(forest).values())
        used: set[int] = set()
        for r in order[1:]:
            kept_value, _ = own(forest)[r]
            before = {t for q in order[: order.index(r)] for t in forest.path_token[forest.path_of(q)].tolist()} - used
            path = tuple(forest.info[r]["path"])
            base = forest.path_token[forest.path_of(chains(forest)[forest.group[r], 0, path[:-1]])].tolist()
            if kept_value:
                least = min(before, key=lambda t: float(forest.behaviour_logprob[t]))
                assert base[kept_value] == least
                used.add(least)
            elif min(before, key=lambda t: float(forest.behaviour_logprob[t])) == base[0]:
                break  # at the prompt either way: which of the two it was can't be told any more


# ---------------------------------------------------------------- episodes: see also test_branching
@pytest.fixture(scope="module")
def small():
    return tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=2).to(torch.float64)


def taken_over(forest: Forest) -> list[int]:
    """Turns that each episode took over from the one that it leaves."""
    turns = torch.bincount(forest.step_trajectory, minlength=forest.n_trajectories).tolist()
    return [n - info["calls"] for n, info in zip(turns, forest.info, strict=True)]


def test_episodes_without_rounds_are_independent(small):
    with pool() as envs:
        trees, plain = session(small, envs), session(small, envs)
        one = Tree(trees=4, rounds=0).grow(tasks_of(trees), trees)
        assert kinds(one) == kinds(Independent(4).grow(tasks_of(plain), plain))
        assert trees.streams == plain.streams


@pytest.mark.slow
def test_episodes_branch_at_the_start_and_at_ends_of_turns(small):
    with pool(start=9, good="") as envs:  # nobody gets anywhere: all episodes have six turns
        s = session(small, envs, tokens=1)
        forest = Tree(trees=1, rounds=1, expansions=600).grow(tasks_of(s, (0,)), s)
    begun = taken_over(forest)[1:]
    assert set(begun) == set(range(6))  # its last turn is a leaf and no point
    assert all(abs(begun.count(k) - 100) < 5 * (600 / 6 * 5 / 6) ** 0.5 for k in range(6))


@pytest.mark.slow
def test_a_branch_of_a_branch_is_drawn_once_among_the_points(small):
    with pool(start=9, good="") as envs:
        counts = [0] * 2
        for step in range(1, 13):
            s = session(small, envs, step=step, tokens=1, rules=EpisodeRules(3))
            forest = Tree(trees=1, rounds=2, expansions=3).grow(tasks_of(s, (0,)), s)
            for info, n in zip(forest.info, taken_over(forest), strict=True):
                if len(info["path"]) == 2:
                    counts[0] += 1
                    base = taken_over(forest)[[i["path"] for i in forest.info].index(info["path"][:1])]
                    assert n > base  # what a branch took over are its base's points
                counts[1] += 1
    assert 0 < counts[0] < counts[1]


def test_kept_episodes_are_some_of_all(small):
    with pool() as envs:
        everything, some = session(small, envs), session(small, envs)
        full_kinds = kinds(Tree(trees=2, rounds=2).grow(tasks_of(everything), everything))
        forest = Tree(trees=2, rounds=2, keep=3).grow(tasks_of(some), some)
    actual = kinds(forest)
    assert actual == {name: full_kinds[name] for name in actual} and len(actual) == 3 * 2 * 3
    assert some.budget.discarded == len(full_kinds) - len(actual)
    assert some.budget.generated_tokens == everything.budget.generated_tokens


def test_all_branches_may_begin_at_the_beginning(small):
    with pool() as envs:
        s = session(small, envs)
        forest = Tree(trees=2, rounds=2, root_probability=1.0).grow(tasks_of(s), s)
    assert taken_over(forest) == [0] * forest.n_trajectories


def test_branches_leave_episodes_within_an_action(small):
    with pool() as envs:
        s = session(small, envs)
        forest = Tree(branch_at="surprisal", rounds=2).grow(tasks_of(s), s)
        replay(forest, envs, s)  # what a branch keeps and what it adds are one action to the environment
    stored = int((forest.kind[forest.token_node] == ACTION).sum())
    assert stored == s.budget.generated_tokens == sum(info["generated"] for info in forest.info)
    # a branch that leaves before token k of an action of three adds 3 - k of its own
    first = [forest.action(steps_of(forest, r)[n]) for r, n in enumerate(taken_over(forest))]
    own_generateds = [i["generated"] - sum(map(len, turns_after(forest, r))) for r, i in enumerate(forest.info)]
    assert any(0 < n < len(action) for n, action in zip(own_generateds, first, strict=True))


def turns_after(forest: Forest, r: int) -> list[list[int]]:
    """The actions of a trajectory after the first one that is its own, or goes on in its base's."""
    return [forest.action(step) for step in steps_of(forest, r)[taken_over(forest)[r] + 1 :]]
