"""Turns compared by their number: MatchTIR's and MT-GRPO's worked numbers, a loop, reductions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import turn_position_credit
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit import GroupRelative
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

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
    found = gxpo.method("matchtir").advantages(forest)
    assert by_turn(forest, found) == pytest.approx([0.707106, 0.707106, 0.353553, -0.707106, -0.707106], abs=1e-6)
    raw = gxpo.method("matchtir", {"credit.singleton": "raw", "credit.add.turn.singleton": "raw"}).advantages(forest)
    assert by_turn(forest, raw) == pytest.approx([0.707106, 0.707106, 0.853553, -0.707106, -0.707106], abs=1e-6)


def test_mt_grpo_card(grow: Grow) -> None:
    """R^T = [.7, .2, .2, .7], R^O = [1, 0, 1, 0], eps 1e-4."""
    rows = [
        ("g", o, [2, 2], {"step_rewards": [t, None]}) for o, t in zip([1.0, 0, 1, 0], [0.7, 0.2, 0.2, 0.7], strict=True)
    ]
    forest = grow(rows)
    found = by_turn(forest, gxpo.method("mt_grpo").advantages(forest))
    assert found[0::2] == pytest.approx([1.731601, -1.731601, 0.000150, -0.000150], abs=1e-6)
    assert found[1::2] == pytest.approx([0.865875, -0.865875, 0.865875, -0.865875], abs=1e-6)


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
def test_equals_a_loop(forest: Forest, over: str, last: bool, discount: float) -> None:
    """Random forests with forks, unscored and uncompared members, missing step rewards."""
    forest = forest.select(forest.scored)
    part = turn_position_credit(over=over, discount=discount, last=last, whole_weight=0.7, turn_weight=0.4)  # type: ignore[arg-type]
    found = part(forest, {}, 0)
    n = forest.n_trajectories
    rewards: list[list[float]] = []
    for r in range(n):
        own = [x for x, o in zip(forest.step_reward.tolist(), forest.step_trajectory.tolist(), strict=True) if o == r]
        if own and all(math.isnan(x) for x in own):
            own[-1] = float(forest.outcome[r])
        rewards.append([0.0 if math.isnan(x) else x for x in own])
    later = [[sum(discount**k * x for k, x in enumerate(own[t:])) for t in range(len(own))] for own in rewards]
    whole = [sum(own) for own in rewards] if over == "rewards" else forest.outcome.tolist()
    wanted = []
    for r in range(n):
        peers = [q for q in range(n) if forest.group[q] == forest.group[r] and bool(forest.compared[q])]
        for t in range(len(rewards[r])):
            fine = 0.0
            if last or t + 1 < len(rewards[r]):
                there = [q for q in peers if t < len(later[q]) and (last or t + 1 < len(later[q]))]
                fine = z(later[r][t], [later[q][t] for q in there], 1e-6)
            wanted.append(0.7 * z(whole[r], [whole[q] for q in peers], 1e-6) + 0.4 * fine)
    expected = [wanted[s] for s in forest.path_step.tolist()]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


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


def test_a_turn_that_is_some_last_one_is_in_no_statistic_of_its_number(grow: Grow) -> None:
    """Three have a turn 0 that a result follows, with .2, .2, .7; the fourth answers at once and is paid 100."""
    rows = [("g", 1.0, [1, 1], {"step_rewards": [t, None]}) for t in (0.2, 0.2, 0.7)]
    forest = grow([*rows, ("g", 1.0, [1], {"step_rewards": [100.0]})])
    found = by_turn(
        forest, turn_position_credit(over="outcome", discount=0.0, last=False, turn_weight=1.0, eps=0.0)(forest, {}, 0)
    )
    mean, spread = 1.1 / 3, statistics.stdev([0.2, 0.2, 0.7])
    assert found == pytest.approx([(0.2 - mean) / spread, 0, (0.2 - mean) / spread, 0, (0.7 - mean) / spread, 0, 0])


def test_turns_of_a_number_sum_to_zero(grow: Grow) -> None:
    place = torch.tensor([0, 1, 0, 1, 0])
    rows = [("g", 0.0, [1] * len(x), {"step_rewards": x}) for x in ([0.3, 1.0], [0.9, -2.0], [0.1])]
    found = turn_position_credit(over="outcome", discount=0.0, turn_weight=1.0)(grow(rows), {}, 0)
    assert float(found[place == 0].sum()) == pytest.approx(0.0, abs=1e-12)
    assert float(found[place == 1].sum()) == pytest.approx(0.0, abs=1e-12)


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


def test_bad_settings_are_refused() -> None:
    for wrong, message in (({"discount": 1.5}, r"add\.turn\.discount"), ({"single": "one"}, "single")):
        with pytest.raises(ConfigError, match=rf"credit\.{message}"):
            turn_position_credit(**wrong)  # type: ignore[arg-type]
