"""Rewards of several objectives: along a direction, on the Pareto front, and what a sum does with scales."""

from __future__ import annotations

import math

import pytest
import torch

import gxpo
from gxpo.environments.rewards.outcomes import directed, exponential, pareto_front

F64 = torch.float64


@pytest.mark.parametrize(("angle", "paid"), [(-15, 0.57262), (0, 0.7), (45, 0.777817)])
def test_a_direction_pays_the_projection(angle, paid) -> None:
    v = [math.cos(math.radians(angle)), math.sin(math.radians(angle))]
    scores = {"helpful": torch.tensor([0.7], dtype=F64), "verbose": torch.tensor([0.4], dtype=F64)}
    names = tuple(scores)
    value = directed(torch.zeros(1), [{"direction": v}], lambda name, share: scores[name], components=names)
    assert round(float(value), 6) == paid


def front(safe, useful, group=None, counts=None):
    scores = {"safe": torch.tensor(safe, dtype=F64), "useful": torch.tensor(useful, dtype=F64)}
    n = len(safe)
    group = torch.zeros(n, dtype=torch.int64) if group is None else torch.tensor(group)
    counts = torch.ones(n, dtype=torch.bool) if counts is None else torch.tensor(counts)
    return pareto_front(torch.zeros(n), lambda name: scores[name], group, counts).tolist()


def test_the_front_is_what_nobody_of_the_group_dominates() -> None:
    assert front([1.0, 0.6, 0.5, 1.0], [0.2, 0.9, 0.5, 0.1]) == [1.0, 1.0, 0.0, 0.0]
    assert front([0.5, 0.5], [0.5, 0.5]) == [1.0, 1.0]  # equals do not dominate each other
    assert front([1.0, 0.5], [1.0, 0.5], group=[0, 1]) == [1.0, 1.0]
    assert front([1.0, 0.5], [1.0, 0.5], counts=[False, True]) == [1.0, 1.0]
    assert front([1.0, math.nan, 0.5], [1.0, 1.0, 0.5])[0::2] == [1.0, 0.0]
    assert math.isnan(front([1.0, math.nan], [1.0, 1.0])[1])


def test_an_exponential_is_of_one_kind_of_task() -> None:
    iou = torch.tensor([0.2, math.nan], dtype=F64)
    value = exponential(torch.tensor([0.2, 1.0], dtype=F64), lambda name, share: iou)
    assert [round(x, 6) for x in value.tolist()] == [round(math.exp(0.6), 6), 1.0]


def test_the_larger_scale_decides_a_sum_before_the_std() -> None:
    """Rewards (1, 0) and (0, 10) of two answers: their sums 1 and 10; standardised each, they cancel."""
    forest = gxpo.Forest.from_completions([[1]], [[[2], [3]]], [[1.0, 10.0]])
    assert [round(x, 5) for x in gxpo.method("multi_objective_grpo").advantages(forest).tolist()] == [-0.70711, 0.70711]
    apart = [gxpo.Forest.from_completions([[1]], [[[2], [3]]], [rewards]) for rewards in ([1.0, 0.0], [0.0, 10.0])]
    first, second = (gxpo.method("grpo").advantages(f) for f in apart)
    assert [round(x, 5) for x in (first + second).tolist()] == [0.0, 0.0]
