"""Episodes that branch between turns: declared forks of what was played, budgets, and one forward pass for both."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
from tests.algorithms.credit.compositions import tree_relative_credit
from tests.learning.llamas import clean_llama
from tests.sampling.rollouts.branching_session import kinds, pool, replay, session, tasks_of
from tests.thorough import some

from gxpo.base.errors import ConfigError
from gxpo.environments import worlds
from gxpo.forest.forest import ACTION, Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import EpisodeRules, Reply
from gxpo.parts.registry import CREDITS
from gxpo.sampling.rollouts import Independent
from gxpo.sampling.rollouts.branching import TurnBranches, branch_probability, surprise
from gxpo.sampling.rollouts.tree import Tree
from gxpo.training.models import tiny_model

ForkRelative = CREDITS["fork_relative"]
FIELDS = {"group_size", "initial", "token_budget", "call_budget"}


def branching(choose="at_surprise", **given):
    """`TurnBranches` with options of its function beside its own."""
    options = {k: v for k, v in given.items() if k not in FIELDS}
    return TurnBranches(next_steps=choose, options=options, **{k: v for k, v in given.items() if k in FIELDS})


def fork_open(group_size=8, forks=2):
    return branching("uniform", group_size=group_size, initial="all", forks=forks)


PARTS = {
    "tree": Tree(trees=2, rounds=2, expansions=2, branches=2),
    "explored": Tree(trees=2, rounds=2, root_probability=0.5, keep=3),
    "surprise": branching(group_size=6, initial=2, weight=5.0),
    "open": fork_open(group_size=4, forks=2),
}


@pytest.fixture(scope="module")
def model():
    return tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=2).to(torch.float64)


@pytest.fixture(scope="module")
def steps():
    with pool() as envs:
        yield envs


def inherited(forest: Forest) -> list[int]:
    """Turns that each trajectory took over."""
    turns = Counter(forest.step_trajectory.tolist())
    return [turns[r] - info["calls"] for r, info in enumerate(forest.info)]


# ---------------------------------------------------------------- what a branch is
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("which", sorted(PARTS))
def test_attempts_replay_from_their_actions_and_share_tokens(model, steps, step, which):
    s = session(model, steps, step=step)
    forest = PARTS[which].grow(tasks_of(s), s)
    replay(forest, steps, s)
    actual = TorchLearner(model, lr=0.0).outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)
    stored = int((forest.kind[forest.token_node] == ACTION).sum())
    # of an attempt that was dropped there is what others share with it
    assert sum(info["generated"] for info in forest.info) <= stored <= s.budget.generated_tokens
    if not s.budget.discarded:
        assert stored == s.budget.generated_tokens == sum(info["generated"] for info in forest.info)
    assert stored < forest.n_entries or which == "explored"  # flattened, shared turns are there several times
    again = Forest.from_records(forest.to_records())
    assert torch.equal(again.token[again.path_token], forest.token[forest.path_token])
    assert again.n_tokens == forest.n_tokens and again.info == forest.info
    assert len(set(forest.id)) == forest.n_trajectories


def test_environments_with_snapshots_are_restored(model):
    world = worlds.make("frozenlake", seed=0, options={"style": "bare", "size": 3})
    assert world.envs is not None and "snapshots" in world.envs.provides
    s = session(model, world.envs)
    forest = Tree(trees=2, rounds=3).grow(world.source.draw(2, 1), s)
    for r in range(forest.n_trajectories):
        world.envs.reset({"again": next(t for t in world.source.draw(2, 1) if t.id == forest.task[r]).info["seed"]})
        for step in (forest.step_trajectory == r).nonzero().squeeze(1).tolist():
            text = world.envs.step({"again": Reply(s.decode(forest.action(step)))})["again"]
            assert text.reward == float(forest.step_reward[step])
        assert text.state == forest.final_state[r]
    world.close()


@pytest.mark.slow
@pytest.mark.parametrize("which", sorted(PARTS))
def test_what_is_grown_depends_on_nothing_else_in_the_batch(model, steps, which):
    together = session(model, steps)
    both = kinds(PARTS[which].grow(tasks_of(together), together))
    for seed in (0, 1, 2):
        session_of_model = session(model, steps)
        own_kinds = kinds(PARTS[which].grow(tasks_of(session_of_model, (seed,)), session_of_model))
        assert own_kinds == {name: kind for name, kind in both.items() if f"steps/{seed}/" in name}
    assert len(set(together.streams)) == len(together.streams)


@pytest.mark.parametrize("top_k", [0, 4])
@pytest.mark.parametrize("context", ["full", "window"])
def test_contexts_and_supports_go_with_the_turns(model, steps, context, top_k):
    s = session(model, steps, rules=EpisodeRules(6, context, 1), top_k=top_k)
    forest = branching(group_size=6, initial=2, probability=1.0).grow(tasks_of(s), s)
    assert max(inherited(forest)) > 0
    actual = TorchLearner(model, lr=0.0).outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)


# ---------------------------------------------------------------- branches at surprise
def test_the_card():
    assert branch_probability(0.9, 0.5, probability=0.5, weight=0.5) == pytest.approx(0.7)
    assert branch_probability(0.9, 0.5, probability=0.5, weight=0.0) == 0.5
    assert branch_probability(9.0, 0.5, probability=0.5, weight=0.5) == 1.0
    assert branch_probability(0.5, 9.0, probability=0.5, weight=0.5) == 0.0
    assert surprise({"logprob": [-0.5, -1.5, -4.0]}, 2) == 1.0
    assert surprise({"logprob": []}, 2) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("initial", [4, 1])
def test_a_beam_of_one_is_independent_attempts(model, steps, initial):
    s, plain = session(model, steps), session(model, steps)
    forest = branching(group_size=4, initial=initial, beam=1).grow(tasks_of(s), s)
    assert kinds(forest) == kinds(Independent(4).grow(tasks_of(plain), plain))
    assert sorted(map(str, s.streams)) == sorted(map(str, plain.streams))


def test_attempts_double_each_turn_until_the_group_is_full(model):
    with pool(start=5, good="") as envs:  # nobody gets anywhere: every episode has all its turns
        s = session(model, envs)
        forest = branching(group_size=5, initial=1, probability=1.0, weight=0.0).grow(tasks_of(s, (0,)), s)
    # after turn 1: one branch; after turn 2 two more, of the first and of its branch; after turn 3 the last one
    actual = {tuple(info["path"]): n for info, n in zip(forest.info, inherited(forest), strict=True)}
    assert actual == {(): 0, (0,): 1, (1,): 2, (0, 0): 2, (2,): 3}
    assert {info["tree"] for info in forest.info} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("step", some([1, 2, 3], [1]))
def test_branches_leave_turns_that_surprise_more_than_the_first(model, steps, step):
    s = session(model, steps, step=step, rules=EpisodeRules(5))
    part = branching(group_size=200, initial=2, probability=0.0, weight=1e9, tokens=2)
    # the first episodes and their branches; those that are begun afterwards are others' trees
    forest = part.grow(tasks_of(s, (0,)), s)
    assert forest.n_trajectories == 200
    first = [info["tree"] < 2 for info in forest.info]
    assert 2 < sum(first) < 200  # none of them was refused for want of room
    forest = forest.select(torch.tensor(first))
    left = Counter()
    for info, n in zip(forest.info, inherited(forest), strict=True):
        if info["path"]:
            left[info["tree"], tuple(info["path"][:-1]), n] += 1
    expected = Counter()
    for r, info in enumerate(forest.info):
        rows = (forest.step_trajectory == r).nonzero().squeeze(1).tolist()
        surprises = []
        for row in rows:
            own_behaviour_logprob = forest.path_behaviour_logprob[forest.path_step == row].tolist()[:2]
            surprises.append(-sum(own_behaviour_logprob) / len(own_behaviour_logprob))
        for n in range(inherited(forest)[r] + 1, len(rows)):  # turns of its own after which it went on
            if surprises[n - 1] > surprises[0]:
                expected[info["tree"], tuple(info["path"]), n] += 1
    assert left == expected


def test_attempts_that_are_over_are_followed_by_fresh_ones(model):
    with pool(start=1) as envs:  # one letter and it is over: seldom anything to branch from
        s = session(model, envs)
        forest = branching(group_size=7, initial=2, probability=0.0, weight=0.0).grow(tasks_of(s), s)
    assert Counter(forest.group) == dict.fromkeys(set(forest.group), 7)
    assert sorted(i["tree"] for i, g in zip(forest.info, forest.group, strict=True) if g == forest.group[0]) == [
        *range(7)
    ]


# ---------------------------------------------------------------- forks of all that are open
@pytest.mark.slow
def test_as_many_are_open_as_there_are_attempts_to_come(model, steps):
    for step in range(1, 6):
        s = session(model, steps, step=step)
        part = fork_open(group_size=4, forks=3)
        forest = part.grow(tasks_of(s), s)
        assert Counter(forest.group) == dict.fromkeys(set(forest.group), 4)  # all of them have come to an end
        assert all(info["end"] in ("done", "turns") for info in forest.info)
        most = 4 * 3 * 6
        assert len(s.streams) <= most and s.budget.generated_tokens >= sum(i["generated"] for i in forest.info)
        # depth by depth: whoever is open at a turn or over before it makes four
        turns = Counter(forest.step_trajectory.tolist())
        assert max(turns.values()) <= 6


def test_one_fork_is_independent_attempts(model, steps):
    s, plain = session(model, steps), session(model, steps)
    forest = fork_open(group_size=4, forks=1).grow(tasks_of(s), s)
    assert kinds(forest) == kinds(Independent(4).grow(tasks_of(plain), plain))
    assert s.budget.discarded == 0


@pytest.mark.slow
def test_forks_are_chosen_uniformly(model):
    with pool(start=9, good="") as envs:
        taken = Counter()
        for step in range(1, 61):
            s = session(model, envs, step=step, rules=EpisodeRules(2), tokens=1)
            forest = fork_open(group_size=4, forks=2).grow(tasks_of(s, (0, 2)), s)
            first = [
                tuple(forest.path_token[forest.path_step == step].tolist())
                for step in range(forest.n_steps)
                if int(forest.step_turn[step]) == 0
            ]
            taken.update(Counter(first).values())
            assert s.budget.discarded == 8 - len(set(first))
    # 4 of 8 slots, two of each: one of four open ones has 0, 1, 2 forks with probability 15, 40, 15 of 70
    ones, twos = taken[1], taken[2]
    n = 60 * 2 * 4
    assert set(taken) == {1, 2}
    for count, p in ((ones, 40 / 70), (twos, 15 / 70)):
        assert abs(count - n * p) < 5 * (n * p * (1 - p)) ** 0.5


# ---------------------------------------------------------------- budgets
BUDGETS = [("call_budget", 30), ("token_budget", 90)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "budget"), BUDGETS)
@pytest.mark.parametrize(
    "part", [Tree(trees=2, rounds=9), branching(group_size=40, initial=2)], ids=["tree", "branching"]
)
def test_a_budget_is_never_exceeded_and_used(model, part, name, budget):
    with pool(start=4) as envs:
        s = session(model, envs)
        forest = dataclasses.replace(part, **{name: budget}).grow(tasks_of(s), s)
        free = session(model, envs)
        more = part.grow(tasks_of(free), free)
    what = "calls" if name == "call_budget" else "generated"
    spent = Counter()
    for info, group in zip(forest.info, forest.group, strict=True):
        spent[group] += info[what]
    assert all(used <= budget for used in spent.values())
    unit = 1 if name == "call_budget" else 3
    assert all(used > budget - 2 * 6 * unit for used in spent.values())  # room for less than two more whole episodes
    assert forest.n_trajectories < more.n_trajectories


@pytest.mark.slow
def test_what_is_under_way_is_reserved(model):
    with pool(start=9, good="") as envs:  # all episodes have six turns: what is reserved is spent
        for budget in range(12, 40):
            s = session(model, envs)
            part = branching(group_size=99, initial=2, probability=1.0, call_budget=budget)
            forest = part.grow(tasks_of(s, (0,)), s)
            assert sum(info["calls"] for info in forest.info) <= budget
            own_count = 6 - torch.tensor(inherited(forest))
            # nobody was refused whom the budget held: the cheapest branch, of one turn, does not fit any more, or no
            # branch is left to make
            assert int(own_count.sum()) == budget or int(own_count.sum()) >= budget - 5


@pytest.mark.parametrize("part", [Tree, branching])
def test_budgets_that_can_not_be_kept_are_refused(model, steps, part):
    first = {"trees": 2} if part is Tree else {"initial": 2}
    s = session(model, steps)
    text = r"rollout.call_budget=11 does not hold the first 2 attempts of up to 6 turns of 3 tokens, which is 12: raise"
    with pytest.raises(ConfigError, match=text):
        part(**first, call_budget=11).grow(tasks_of(s), s)
    with pytest.raises(ConfigError, match=r"rollout.token_budget=35 does not hold .* which is 36: raise it"):
        part(**first, token_budget=35).grow(tasks_of(s), s)
    summary = session(model, steps, rules=EpisodeRules(6, "summary", 2))
    with pytest.raises(ConfigError, match="summaries are further calls"):
        part(**first, call_budget=99).grow(tasks_of(summary), summary)


# ---------------------------------------------------------------- one forward pass for what is shared
@pytest.mark.slow
@pytest.mark.parametrize("which", sorted(PARTS))
def test_packed_equals_flattened_in_loss_and_gradient(steps, which):
    model = clean_llama(vocab_size=100)
    s = session(model, steps)
    forest = s.score(PARTS[which].grow(tasks_of(s), s))
    forest = forest.with_rewards(forest.outcome + torch.arange(forest.n_trajectories) % 3)
    credit = ForkRelative(first_steps=True)(forest, {}, 0) + tree_relative_credit()(forest, {}, 0)
    assert float(credit.abs().max()) > 0.1
    rows = forest.path_trajectory

    def loss(x):
        ratio = (x["logprob"] - forest.path_behaviour_logprob - 0.1).exp()
        gain = torch.minimum(ratio * credit, ratio.clamp(0.95, 1.05) * credit)
        return -(gain / torch.bincount(rows)[rows]).sum() / forest.n_trajectories

    packed, flat = TorchLearner(model, lr=0.0), TorchLearner(model, lr=0.0, layout="flat")
    gradient = packed.gradient(forest, loss)
    for learner, other in ((packed, forest.flatten()), (flat, forest), (flat, forest.flatten())):
        actual = learner.gradient(other, loss)
        assert max(float((actual[n] - gradient[n]).abs().max()) for n in gradient) < 1e-10
    assert packed.step(forest, loss).tokens_forward < packed.step(forest.flatten(), loss).tokens_forward


# ---------------------------------------------------------------- what breaks, what is refused
@pytest.mark.parametrize("which", sorted(PARTS))
def test_attempts_of_a_broken_environment_alone_are_unscored(model, which):
    with pool(crash=1, start=2) as envs:  # seed 0 raises at the second action
        s = session(model, envs)
        forest = s.score(PARTS[which].grow(tasks_of(s, (0, 1)), s))
    broken = [task == "steps/0" for task in forest.task]
    ends = {info["end"] for info, b in zip(forest.info, broken, strict=True) if b}
    assert ends <= {"raised", "done", "turns"} and "raised" in ends
    for r, info in enumerate(forest.info):
        assert bool(forest.scored[r]) == (info["end"] != "raised")
    assert not any(info["end"] == "raised" for info, b in zip(forest.info, broken, strict=True) if not b)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [(branching, "group_size", 0), (branching, "initial", -1), (branching, "initial", 17),
     (branching, "beam", 0), (branching, "tokens", 0), (branching, "probability", 1.5),
     (branching, "token_budget", -1), (branching, "call_budget", -1), (fork_open, "group_size", 0),
     (fork_open, "forks", 0), (Tree, "call_budget", -1), (Tree, "root_probability", 1.1),
     (Tree, "root_probability", -0.1)],
)  # fmt: skip
def test_impossible_settings_are_refused(part, field, value):
    with pytest.raises(ConfigError, match=rf"rollout.{field}"):
        part(**{field: value})


# ---------------------------------------------------------------- errata
def test_the_first_surprise_is_the_episodes_own(model, steps):
    """ARPO's code keeps the first entropy it ever saw in a row of the batch: there, a second step would compare with
    the first step's. Here a step's branches are the same whatever was grown before."""
    part = branching(group_size=6, initial=2, weight=5.0)
    fresh = session(model, steps, step=2)
    expected = kinds(part.grow(tasks_of(fresh), fresh))
    for step in (1, 2):
        s = session(model, steps, step=step)
        actual = kinds(part.grow(tasks_of(s), s))
    assert actual == expected
