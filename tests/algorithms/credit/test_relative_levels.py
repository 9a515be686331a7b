"""Relative advantages by level: agents, turns, trees, step rewards, against loops over dictionaries."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies
from tests.algorithms.credit.compositions import step_reward_credit, turn_position_credit
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit import GroupRelative, Relative
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest


def attempt(name, reward, *agents, group="q"):
    turns = [{"agent": agent, "context": [1, i + 2], "action": [5, 6]} for i, agent in enumerate(agents)]
    return {"schema": "gxpo.rollouts/1", "group": group, "id": name, "turns": turns, "reward": reward}


def test_the_worked_numbers():
    # R = [1, 0]; the solver speaks once and twice: its rows are 1, 0, 0 with mean 1/3 and
    # std sqrt((4/9 + 1/9 + 1/9) / 2) = 0.577350, so (2/3) / 0.577351 = 1.154699 and (-1/3) / 0.577351 = -0.577349.
    # The verifier speaks once each: 1, 0 with mean 1/2 and std 0.707107, so +-0.5 / 0.707108 = +-0.707106.
    forest = Forest.from_records(
        [attempt("a", 1.0, "solver", "verifier"), attempt("b", 0.0, "solver", "solver", "verifier")]
    )
    actual = gxpo.method("dr_mas").advantages(forest)
    expected = torch.tensor([1.154699, 0.707106, -0.577349, -0.577349, -0.707106], dtype=torch.float64)
    assert torch.allclose(actual, expected.repeat_interleave(2), atol=1e-6)


def test_agents_are_not_pooled_and_groups_neither():
    # In "q" the team is right whenever the planner speaks: nothing tells its calls apart, whoever else fails.
    forest = Forest.from_records(
        [
            attempt("a", 1.0, "planner", "solver"),
            attempt("b", 1.0, "planner", "solver"),
            attempt("c", 0.0, "solver"),
            attempt("d", 0.0, "planner", "solver", group="other"),
        ]
    )
    actual = gxpo.method("grpo", {"credit": "dr_mas", "credit.scale": "none"}).advantages(forest)[::2].tolist()
    third = 1 / 3
    assert actual == pytest.approx([0.0, third, 0.0, third, -2 * third, 0.0, 0.0])


def test_the_only_call_of_an_agent_has_zero():
    forest = Forest.from_records([attempt("a", 1.0, "solver", "verifier"), attempt("b", 0.0, "solver")])
    assert gxpo.method("dr_mas").advantages(forest)[2:4].tolist() == [0.0, 0.0]


def by_hand(forest, center, scale):
    """Sums over dictionaries, call by call."""
    calls = defaultdict(list)
    names = [forest.agent_names[a] for a in forest.step_agent.tolist()]
    rows = forest.step_trajectory.tolist()
    for s, r in enumerate(rows):
        if bool(forest.scored[r]) and bool(forest.compared[r]):
            calls[forest.group[r], names[s]].append(s)
    reward = forest.outcome.tolist()
    out = []
    for s, r in enumerate(rows):
        members = calls[forest.group[r], names[s]]
        values = [reward[rows[m]] for m in members]
        others = [reward[rows[m]] for m in members if m != s]
        if not bool(forest.scored[r]) or not values:
            out.append(0.0)
            continue
        flat = max(values) - min(values) <= 1e-12 * max(map(abs, values))
        if center == "leave_one_out":
            middle = statistics.fmean(others) if others else None
        else:
            middle = statistics.fmean(values)
        if middle is None or (s in members and flat):
            out.append(0.0 if s in members else reward[r])
        elif scale == "none":
            out.append(reward[r] - middle)
        else:
            spread = statistics.stdev(values) if len(values) > 1 and not flat else 0.0
            out.append((reward[r] - middle) / (spread + 1e-6) if spread else 0.0)
    return torch.tensor(out, dtype=torch.float64)


@given(
    st.integers(0, 10**6),
    st.sampled_from([("mean", "std"), ("mean", "none"), ("leave_one_out", "none")]),
    st.booleans(),
)
def test_retryst_a_loop(seed, setting, leave_some_out):
    forest = strategies.random_forest(seed, groups=2, max_turns=3)
    generator = torch.Generator().manual_seed(seed)
    n = forest.n_trajectories
    outcome = torch.randint(0, 3, (n,), generator=generator).double() / 2
    outcome[torch.rand(n, generator=generator) < 0.15] = math.nan
    compared = torch.rand(n, generator=generator) > 0.2 if leave_some_out else torch.ones(n, dtype=torch.bool)
    forest = forest.replace(outcome=outcome, compared=compared)
    center, scale = setting
    keys = {"credit.center": center, "credit.scale": scale}
    actual = gxpo.method("dr_mas", keys).advantages(forest)
    expected = forest.to_path(by_hand(forest, center, scale), "S")
    assert torch.allclose(actual, expected, rtol=0, atol=1e-9)


def test_one_agent_and_one_turn_is_the_base():
    records = [attempt(f"{g}{i}", float(i % 3), "agent", group=g) for g in "xyz" for i in range(5)]
    forest = Forest.from_records(records)
    assert torch.equal(gxpo.method("dr_mas").advantages(forest), gxpo.method("grpo").advantages(forest))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.floats(-5, 5), st.floats(0.1, 10))
def test_shift_and_scale_of_the_outcome_do_not_matter(values, shift, factor):
    forest = Forest.from_records([attempt(str(i), float(v), "a", "b") for i, v in enumerate(values)])
    part, agent = Relative(group_by=("agent",), unit="step", eps=0.0), forest.to_path(forest.step_agent, "S")
    one = part(forest, {}, 0)
    other = part(forest.replace(outcome=factor * forest.outcome + shift), {}, 0)
    assert torch.allclose(one, other, atol=1e-6)
    assert abs(float(one[agent == 0].sum())) < 1e-9 and abs(float(one[agent == 1].sum())) < 1e-9


def test_it_is_a_flag_on_other_methods():
    forest = Forest.from_records(
        [attempt("a", 1.0, "solver", "verifier"), attempt("b", 0.0, "solver", "solver", "verifier")]
    )
    # RLOO of the solver's calls 1, 0, 0: 1 - 0, 0 - 1/2, 0 - 1/2; of the verifier's 1, 0: 1 - 0, 0 - 1
    actual = gxpo.method("dr_mas+rloo").advantages(forest)[::2].tolist()
    assert actual == pytest.approx([1.0, 1.0, -0.5, -0.5, -1.0])
    # Dr. GRPO: 1 - 1/3, 0 - 1/3, 0 - 1/3 and 1/2, -1/2
    actual = gxpo.method("dr_mas+dr_grpo").advantages(forest)[::2].tolist()
    assert actual == pytest.approx([2 / 3, 0.5, -1 / 3, -1 / 3, -0.5])


Grow = Callable[..., Forest]


def by_turn(forest: Forest, credit: torch.Tensor) -> list[float]:
    """The credit of each turn's first token."""
    steps = forest.path_step.tolist()
    return [float(credit[steps.index(s)]) for s in range(forest.n_steps)]


# ---------------------------------------------------------------- cards
def test_matchtir_card(grow: Grow) -> None:
    """r = [[1, .5, 1], [.5, 0]]: D = [[2.26, 1.4, 1], [.5, 0]]; z of two is +-.707106. The card's .853553 at the turn
    that nobody else has is the code's raw return, (.707106 + 1) / 2; here that part is 0."""
    rows = [("g", 1.0, [2, 1, 1], {"step_rewards": [1.0, 0.5, 1.0]}), ("g", 0.0, [1, 3], {"step_rewards": [0.5, 0.0]})]
    forest = grow(rows)
    actual = gxpo.method("matchtir").advantages(forest)
    assert by_turn(forest, actual) == pytest.approx([0.707106, 0.707106, 0.353553, -0.707106, -0.707106], abs=1e-6)
    raw = gxpo.method("matchtir", {"credit.singleton": "raw", "credit.add.turn.singleton": "raw"}).advantages(forest)
    assert by_turn(forest, raw) == pytest.approx([0.707106, 0.707106, 0.853553, -0.707106, -0.707106], abs=1e-6)


def test_mt_grpo_card(grow: Grow) -> None:
    """R^T = [.7, .2, .2, .7], R^O = [1, 0, 1, 0], eps 1e-4."""
    rows = [
        ("g", o, [2, 2], {"step_rewards": [t, None]}) for o, t in zip([1.0, 0, 1, 0], [0.7, 0.2, 0.2, 0.7], strict=True)
    ]
    forest = grow(rows)
    actual = by_turn(forest, gxpo.method("mt_grpo").advantages(forest))
    assert actual[0::2] == pytest.approx([1.731601, -1.731601, 0.000150, -0.000150], abs=1e-6)
    assert actual[1::2] == pytest.approx([0.865875, -0.865875, 0.865875, -0.865875], abs=1e-6)


# ---------------------------------------------------------------- a loop
def z(x: float, members: list[float], eps: float) -> float:
    if len(members) < 2 or max(members) - min(members) <= 1e-12 * max(map(abs, members)):
        return 0.0
    return (x - statistics.fmean(members)) / (statistics.stdev(members) + eps)


@settings(max_examples=60, deadline=None)
@given(
    forest=forests(after=False), over=st.sampled_from(["rewards", "outcome"]), last=st.booleans(),
    discount=st.sampled_from([0.0, 0.9]),
)  # fmt: skip
def test_turn_levels_equal_a_loop(forest: Forest, over: str, last: bool, discount: float) -> None:
    """Random forests with forks, unscored and uncompared members, missing step rewards."""
    forest = forest.select(forest.scored)
    part = turn_position_credit(over=over, discount=discount, last=last, whole_weight=0.7, turn_weight=0.4)  # type: ignore[arg-type]
    actual = part(forest, {}, 0)
    n = forest.n_trajectories
    rewards: list[list[float]] = []
    for r in range(n):
        own_step_rewards = [
            x for x, o in zip(forest.step_reward.tolist(), forest.step_trajectory.tolist(), strict=True) if o == r
        ]
        if own_step_rewards and all(math.isnan(x) for x in own_step_rewards):
            own_step_rewards[-1] = float(forest.outcome[r])
        rewards.append([0.0 if math.isnan(x) else x for x in own_step_rewards])
    later = [
        [sum(discount**k * x for k, x in enumerate(own_step_rewards[t:])) for t in range(len(own_step_rewards))]
        for own_step_rewards in rewards
    ]
    totals = [sum(own_step_rewards) for own_step_rewards in rewards] if over == "rewards" else forest.outcome.tolist()
    target = []
    for r in range(n):
        peers = [q for q in range(n) if forest.group[q] == forest.group[r] and bool(forest.compared[q])]
        for t in range(len(rewards[r])):
            fine = 0.0
            if last or t + 1 < len(rewards[r]):
                peers_with_step = [q for q in peers if t < len(later[q]) and (last or t + 1 < len(later[q]))]
                fine = z(later[r][t], [later[q][t] for q in peers_with_step], 1e-6)
            target.append(0.7 * z(totals[r], [totals[q] for q in peers], 1e-6) + 0.4 * fine)
    expected = [target[s] for s in forest.path_step.tolist()]
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)


# ---------------------------------------------------------------- reductions
def test_mt_grpo_without_turn_rewards_or_turns_is_grpo(grow: Grow) -> None:
    rows = [("g", 1.0, [2, 1]), ("g", 0.0, [1]), ("g", 0.5, [1, 1, 2])]
    forest, plain = grow(rows), GroupRelative(eps=1e-4)
    assert torch.equal(gxpo.method("mt_grpo").advantages(forest), plain(forest, {}, 0))
    one = grow([(g, r, n, {"step_rewards": [float(k)] * len(n)}) for k, (g, r, n) in enumerate([rows[1], rows[1]])])
    assert torch.equal(gxpo.method("mt_grpo").advantages(one), plain(one, {}, 0))
    weighed = gxpo.method("mt_grpo", {"credit.add.turn.weight": 0.0})
    paid = grow([(g, r, n, {"step_rewards": [float(k)] * len(n)}) for k, (g, r, n) in enumerate(rows)])
    assert torch.equal(weighed.advantages(paid), plain(paid, {}, 0))


def test_matchtir_on_turns_of_one_step_is_grpo(grow: Grow) -> None:
    forest = grow([("g", 1.0, [2]), ("g", 0.0, [1]), ("h", 0.5, [1])])
    assert gxpo.method("matchtir").advantages(forest).tolist() == pytest.approx(
        gxpo.method("grpo").advantages(forest).tolist(), abs=1e-12
    )


def test_last_turns_are_in_no_statistic_of_their_number(grow: Grow) -> None:
    """Three have a turn 0 that a result follows, with .2, .2, .7; the fourth answers at once and is paid 100."""
    rows = [("g", 1.0, [1, 1], {"step_rewards": [t, None]}) for t in (0.2, 0.2, 0.7)]
    forest = grow([*rows, ("g", 1.0, [1], {"step_rewards": [100.0]})])
    actual = by_turn(
        forest, turn_position_credit(over="outcome", discount=0.0, last=False, turn_weight=1.0, eps=0.0)(forest, {}, 0)
    )
    mean, spread = 1.1 / 3, statistics.stdev([0.2, 0.2, 0.7])
    assert actual == pytest.approx([(0.2 - mean) / spread, 0, (0.2 - mean) / spread, 0, (0.7 - mean) / spread, 0, 0])


def test_turns_of_a_number_sum_to_zero(grow: Grow) -> None:
    place = torch.tensor([0, 1, 0, 1, 0])
    rows = [("g", 0.0, [1] * len(x), {"step_rewards": x}) for x in ([0.3, 1.0], [0.9, -2.0], [0.1])]
    actual = turn_position_credit(over="outcome", discount=0.0, turn_weight=1.0)(grow(rows), {}, 0)
    assert float(actual[place == 0].sum()) == pytest.approx(0.0, abs=1e-12)
    assert float(actual[place == 1].sum()) == pytest.approx(0.0, abs=1e-12)


# errata
def test_a_turn_that_nobody_else_reaches_is_paid_for_being_there(grow: Grow) -> None:
    """The released MatchTIR takes mean 0 and std 1 for a turn number with one member. Of two attempts whose first two
    turns are equal, the longer one's third, with a return of .2, gets half of it: +.1, where there is nobody to compare
    it with."""
    forest = grow([("g", 1.0, [1] * len(x), {"step_rewards": x}) for x in ([0.5, 0.5], [0.5, 0.5, 0.2])])
    settings = {"over": "outcome", "discount": 0.0}
    ours = turn_position_credit(**settings)(forest, {}, 0)
    theirs = turn_position_credit(single="raw", **settings)(forest, {}, 0)
    assert ours.tolist() == [0.0] * 5 and theirs.tolist() == pytest.approx([0, 0, 0, 0, 0.1], abs=1e-6)


def test_bad_settings_of_turn_levels_are_refused() -> None:
    for wrong, message in (({"discount": 1.5}, r"add\.turn\.discount"), ({"single": "one"}, "single")):
        with pytest.raises(ConfigError, match=rf"credit\.{message}"):
            turn_position_credit(**wrong)  # type: ignore[arg-type]


F64 = torch.float64


def test_worked_group(grow: Grow) -> None:
    """Outcomes [1, 0] and steps [[.05, .025], [0]], weight 2, eps 0.
    A^E: (1 - .5) / sqrt(.5) = +-.70710678.
    A^S: mean .025, deviations [.025, 0, -.025], variance (2 * .000625) / 2 = .025^2: [1, 0, -1]."""
    forest = grow([("g", 1.0, [1, 1]), ("g", 0.0, [1])])
    reward = torch.tensor([0.05, 0.025, 0.0], dtype=F64)
    actual = step_reward_credit(step_weight=2.0, eps=0.0)(forest, {"process_reward": reward}, 0)
    e = 0.5 / math.sqrt(0.5)
    assert actual.tolist() == pytest.approx([e + 2, e, -e - 2], abs=1e-9)


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([0.0, 0.3, 1.0]),
        st.lists(st.sampled_from([0.0, 0.1, -0.4, 0.25]), min_size=1, max_size=3),  # a reward for each turn
        st.booleans(),  # compared
    ),
    min_size=1,
    max_size=8,
)


def standardised(x: float, members: list[float], own: bool) -> float:
    """(x - mean) / (sample std + 1e-6) against the members; 0 where there is nothing to compare."""
    if len(members) < 2 or max(members) == min(members):
        return 0.0
    return (x - statistics.fmean(members)) / (statistics.stdev(members) + 1e-6)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, weight=st.sampled_from([0.0, 1.0, 0.5]))
def test_step_rewards_equal_a_loop(grow: Grow, rows, weight) -> None:
    forest = grow([(g, r, [2] * len(steps), {"compared": c}) for g, r, steps, c in rows])
    target = []
    for g, r, steps, c in rows:
        peers = [row for row in rows if row[0] == g and row[3]]
        episode = standardised(r, [p[1] for p in peers], c)
        turns = [x for p in peers for x in p[2]]
        for x in steps:
            target += [episode + weight * standardised(x, turns, c)] * 2
    reward = torch.tensor([x for row in rows for x in row[2]], dtype=F64)
    actual = step_reward_credit(step_weight=weight)(forest, {"process_reward": reward}, 0)
    assert actual.tolist() == pytest.approx(target, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(rows=ROWS, same=st.sampled_from([0.0, 0.1, -3.0]))
def test_an_untrained_reward_model_gives_the_outcome_alone(grow: Grow, rows, same) -> None:
    forest = grow([(g, r, [1] * len(steps), {"compared": c}) for g, r, steps, c in rows])
    actual = step_reward_credit()(forest, {"process_reward": torch.full((forest.n_steps,), same, dtype=F64)}, 0)
    assert torch.equal(actual, GroupRelative()(forest, {}, 0))


def test_steps_of_equal_outcomes_differ_and_are_declared(grow: Grow) -> None:
    """Rewards .3 and .1 of two turns: mean .2, std sqrt(.02): +-.707107. A filter of equal groups would drop them."""
    forest = grow([("g", 1.0, [1, 1])])
    actual = step_reward_credit(eps=0.0)(forest, {"process_reward": torch.tensor([0.3, 0.1], dtype=F64)}, 0)
    assert actual.tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    assert step_reward_credit().learns_from_equal_groups
    with pytest.raises(ConfigError, match="rollout=independent"):
        gxpo.method("oprl+dapo")


def test_bad_settings_of_step_rewards_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"credit\.scale is 'var'"):
        step_reward_credit(scale="var")  # type: ignore[arg-type]
