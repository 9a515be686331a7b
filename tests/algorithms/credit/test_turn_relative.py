"""OSPO: steps of one time against each other, and what earnings that drift apart cost."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.credit.piece_relative import turn_relative
from gxpo.base.errors import ConfigError
from gxpo.parts.registry import CREDITS

TurnRelative = CREDITS["turn_relative"]


def test_a_fleet_of_three_at_two_times(grow):
    # t0: rewards 1 2 3: mean 2, population std .816497 -> -1.224745 0 1.224745; earnings' std rises by .816497
    # t1: rewards 3 2 (the third is idle): mean 2.5, std .5 -> 1 -1; earnings 1 2 -> 4 4: std falls from .5 to 0
    rows = [([1.0, 3.0], 2), ([2.0, 2.0], 2), ([3.0], 1)]
    forest = grow([("world", 0.0, [1] * n, {"step_rewards": r}) for r, n in rows])
    d = 0.816497
    expected = [-1.224745 - d, 1.0 + 0.5, 0.0 - d, -1.0 + 0.5, 1.224745 - d]
    assert TurnRelative()(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-6)
    plain = TurnRelative(fairness=0.0)(forest, {}, 0).tolist()
    assert plain == pytest.approx([-1.224745, 1.0, 0.0, -1.0, 1.224745], abs=1e-6)


agent = st.tuples(
    st.sampled_from("ab"), st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=1, max_size=3), st.booleans()
)


@settings(max_examples=60, deadline=None)
@given(st.lists(agent, min_size=1, max_size=7), st.sampled_from([0.0, 1.0, 0.3]), st.sampled_from([0.0, 0.9]))
def test_it_equals_a_loop(grow, rows, fairness, discount):
    forest = grow([(g, 0.0, [1] * len(r), {"step_rewards": r, "compared": c}) for g, r, c in rows])
    actual = TurnRelative(fairness=fairness, discount=discount)(forest, {}, 0)
    expected = []
    for g, rewards, compared in rows:
        for t in range(len(rewards)):
            local_rows = [r for h, r, c in rows if h == g and c and len(r) > t]
            ahead = lambda r, t=t: sum(x * discount**k for k, x in enumerate(r[t:]))  # noqa: E731
            values = [ahead(r) for r in local_rows]
            if not values or max(values) - min(values) <= 1e-12 * max(values) or (compared and len(values) == 1):
                expected.append(0.0)
                continue
            a = (ahead(rewards) - statistics.fmean(values)) / (statistics.pstdev(values) + 1e-8)
            before = statistics.pstdev(sum(r[:t]) for r in local_rows)
            after = statistics.pstdev(sum(r[:t]) + ahead(r) for r in local_rows)
            expected.append(a - fairness * (after - before))
    assert actual.tolist() == pytest.approx(expected, abs=1e-7)


def test_attempts_of_one_turn_are_grpo(grow):
    forest = grow([(g, r, [2]) for g, r in zip("aaabb", (1.0, 0.0, 0.5, 1.0, 1.0), strict=True)])
    actual = TurnRelative(fairness=0.0)(forest, {}, 0)
    assert torch.allclose(actual, GroupRelative(ddof=0, eps=1e-8)(forest, {}, 0), atol=1e-12)
    # earnings of nobody before: what they spread is the std of the group
    spread = statistics.pstdev([1.0, 0.0, 0.5])
    cost = [spread] * 6 + [0.0] * 4
    assert (actual - TurnRelative()(forest, {}, 0)).tolist() == pytest.approx(cost)


def test_equal_rewards_at_a_time_and_whoever_is_alone_have_none(grow):
    rewards = [[0.1, 0.7], [0.3, 0.7], [0.3, 0.7, 9.0]]
    forest = grow([("a", 0.0, [1] * len(r), {"step_rewards": r}) for r in rewards])
    actual = TurnRelative()(forest, {}, 0)
    turn = forest.step_turn[forest.path_step]
    assert bool((actual[turn > 0] == 0).all()) and bool((actual[turn == 0] != 0).all())


def test_only_the_steps_of_one_time_matter():
    reward = torch.tensor([1.0, 2.0, 5.0, 9.0], dtype=torch.float64)
    time, before = torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.float64)
    actual = turn_relative(reward, before, time)
    other = turn_relative(torch.cat([reward[:2], reward[2:] * 7]), before, time)
    assert torch.equal(actual[:2], other[:2])
    assert turn_relative(reward, before, torch.tensor([0, 0, -1, -1]))[2:].tolist() == [0.0, 0.0]


def test_time_may_be_noted_by_the_steps(grow):
    records = grow([("a", 0.0, [1, 1], {"step_rewards": r}) for r in ([1.0, 5.0], [2.0, 1.0])]).to_records()
    for record, times in zip(records, ((0, 7), (7, 8)), strict=True):
        for turn, time in zip(record["turns"], times, strict=True):
            turn["info"] = {"time": time}
    actual = TurnRelative(time="step_info.time", fairness=0.0)(gxpo.Forest.from_records(records), {}, 0)
    assert actual.tolist() == pytest.approx([0.0, 1.0, -1.0, 0.0])  # 5 and 2 at time 7


def test_the_method_and_the_options(grow):
    forest = grow([("a", r, [1]) for r in (1.0, 0.0, None)])
    assert gxpo.method("ospo").advantages(forest).tolist() == pytest.approx([1 - 0.5, -1 - 0.5, 0.0])
    for bad, key in (({"time": "agent"}, "time"), ({"discount": 1.5}, "discount")):
        with pytest.raises(ConfigError, match=rf"credit\.{key}"):
            TurnRelative(**bad)


def test_returns_are_compared_and_earnings_are_what_was_paid(grow):
    # discount .5. Turn 0: returns 1 + .5 * 2 = 2 and 1.5, sample std .353553; earnings 0 0 -> 2 1.5: std 0 -> .25
    # turn 1: returns 2 and 3, std .707107; earnings 1 0 -> 3 3: population std .5 -> 0
    forest = grow([("world", 0.0, [1, 1], {"step_rewards": r}) for r in ([1.0, 2.0], [0.0, 3.0])])
    actual = TurnRelative(discount=0.5, ddof=1, eps=0.5)(forest, {}, 0)
    first, second = 0.25 / 0.853553, 0.5 / 1.207107
    assert actual.tolist() == pytest.approx([first - 0.25, -second + 0.5, -first - 0.25, second + 0.5], abs=1e-6)
    full_value = TurnRelative(discount=1.0, ddof=1, eps=0.5)(forest, {}, 0)  # returns 3 and 3, then as above
    assert full_value.tolist() == pytest.approx([0.0, -second + 0.5, 0.0, second + 0.5], abs=1e-6)


def test_of_too_few_that_are_compared_there_is_nothing_to_say():
    reward, one = torch.tensor([1.0, 3.0, 9.0]), torch.zeros(3, dtype=torch.int64)
    actual = turn_relative(reward, torch.zeros(3), one, ddof=2, where=torch.tensor([True, True, False]))
    assert actual.tolist() == [0.0, 0.0, 0.0]
