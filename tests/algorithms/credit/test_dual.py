"""Advantages under a bound: the multiplier, the weighted difference, and bounds that are none."""

from __future__ import annotations

import math

import pytest
import torch

import gxpo
from gxpo.algorithms.credit.dual import Dual, ascended
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.methods.method import controls

KEYS = {"credit": "dual", "credit.cost": "cost", "credit.cost_limit": 0.1}


def forest(outcome, cost):
    forest = gxpo.Forest.from_completions([[1]], [[[2 + i] for i in range(len(outcome))]], [outcome])
    return forest.with_rewards(forest.outcome, components={"cost": torch.tensor(cost, dtype=torch.float64)})


def test_the_multiplier_ascends_above_the_bound_alone() -> None:
    # .5 + .1 (.3 - .1) = .52; at a bound that is kept it falls, never below 0
    assert ascended(0.5, 0.3, 0.1, 0.1) == pytest.approx(0.52) and ascended(0.01, 0.0, 0.2, 0.1) == 0.0
    method = gxpo.method("grpo", {**KEYS, "credit.start": 0.5})
    assert method.adjust({"reward_cost": 0.3})["dual_multiplier"] == pytest.approx(0.52)
    assert method.adjust({})["dual_multiplier"] == pytest.approx(0.52) and "credit" in controls(method)


def test_costs_are_taken_off_and_the_size_is_kept() -> None:
    # multiplier .52: (1 - .52 * .3) / 1.52 = .555263
    part = Dual(cost="cost", cost_limit=0.1, start=0.52, center="none", scale="none")
    credit = part(forest([1.0, 0.0], [0.3, 0.0]), {}, 0)
    assert credit.tolist() == pytest.approx([0.555263, 0.0], abs=1e-6)


def test_an_unknown_cost_is_compared_with_nothing() -> None:
    part = Dual(cost="cost", cost_limit=0.1, start=1.0, scale="none")
    credit = part(forest([1.0, 0.0, 0.0], [1.0, 0.0, math.nan]), {}, 0)
    # outcomes: 2/3, -1/3, -1/3; costs of the first two: +-.5; over 2
    assert credit.tolist() == pytest.approx([(2 / 3 - 0.5) / 2, (-1 / 3 + 0.5) / 2, -1 / 6])


def test_the_multiplier_is_part_of_the_checkpoint() -> None:
    part, again = Dual(start=0.7), Dual()
    again.load_state_dict(part.state_dict())
    assert again.multiplier == 0.7
    with pytest.raises(CheckpointError, match="not 'multiplier'"):
        again.load_state_dict({"x": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost_limit": 0.1}, r"credit=dual has no bound: set credit\.cost"),
        ({"cost": "cost"}, r"credit=dual has no bound: set credit\.cost_limit"),
        ({"cost": "cots", "cost_limit": 0.1}, r"credit\.cost=cots: the rollouts have no component of that name.*cost"),
    ],
)
def test_a_constraint_without_a_bound_is_refused(options, message) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        Dual(**options)(forest([1.0, 0.0], [0.3, 0.0]), {}, 0)
    assert "\n" not in str(error.value)
