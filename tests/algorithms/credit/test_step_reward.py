"""Outcome and process reward: a worked group, a loop, and the reduction to the outcome alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import step_reward_credit

import gxpo
from gxpo.algorithms.credit import GroupRelative
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

Grow = Callable[..., Forest]
F64 = torch.float64


def test_worked_group(grow: Grow) -> None:
    """Outcomes [1, 0] and steps [[.05, .025], [0]], weight 2, eps 0.
    A^E: (1 - .5) / sqrt(.5) = +-.70710678.
    A^S: mean .025, deviations [.025, 0, -.025], variance (2 * .000625) / 2 = .025^2: [1, 0, -1]."""
    forest = grow([("g", 1.0, [1, 1]), ("g", 0.0, [1])])
    reward = torch.tensor([0.05, 0.025, 0.0], dtype=F64)
    found = step_reward_credit(step_weight=2.0, eps=0.0)(forest, {"process_reward": reward}, 0)
    e = 0.5 / math.sqrt(0.5)
    assert found.tolist() == pytest.approx([e + 2, e, -e - 2], abs=1e-9)


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
def test_equals_a_loop(grow: Grow, rows, weight) -> None:
    forest = grow([(g, r, [2] * len(steps), {"compared": c}) for g, r, steps, c in rows])
    wanted = []
    for g, r, steps, c in rows:
        peers = [row for row in rows if row[0] == g and row[3]]
        episode = standardised(r, [p[1] for p in peers], c)
        turns = [x for p in peers for x in p[2]]
        for x in steps:
            wanted += [episode + weight * standardised(x, turns, c)] * 2
    reward = torch.tensor([x for row in rows for x in row[2]], dtype=F64)
    found = step_reward_credit(step_weight=weight)(forest, {"process_reward": reward}, 0)
    assert found.tolist() == pytest.approx(wanted, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(rows=ROWS, same=st.sampled_from([0.0, 0.1, -3.0]))
def test_a_reward_model_that_still_is_the_policy_gives_the_outcome_alone(grow: Grow, rows, same) -> None:
    forest = grow([(g, r, [1] * len(steps), {"compared": c}) for g, r, steps, c in rows])
    found = step_reward_credit()(forest, {"process_reward": torch.full((forest.n_steps,), same, dtype=F64)}, 0)
    assert torch.equal(found, GroupRelative()(forest, {}, 0))


def test_steps_of_equal_outcomes_are_told_apart_and_that_is_declared(grow: Grow) -> None:
    """Rewards .3 and .1 of two turns: mean .2, std sqrt(.02): +-.707107. A filter of equal groups would drop them."""
    forest = grow([("g", 1.0, [1, 1])])
    found = step_reward_credit(eps=0.0)(forest, {"process_reward": torch.tensor([0.3, 0.1], dtype=F64)}, 0)
    assert found.tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    assert step_reward_credit().learns_from_equal_groups
    with pytest.raises(ConfigError, match="rollout=independent"):
        gxpo.method("oprl+dapo")


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"credit\.scale is 'var'"):
        step_reward_credit(scale="var")  # type: ignore[arg-type]
