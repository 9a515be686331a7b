"""Weights for groups by whether long answers are worth their length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart
from gxpo.weighting.verdicts import correct

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def long_pays(length: Tensor, correct: Tensor, complete: Tensor, group: Tensor, where: Tensor | None = None) -> Tensor:
    """[R] bool: the group's longest correct answer is longer than its wrong answers are on average.

    length    [R] tokens
    correct   [R] bool
    complete  [R] bool: not cut off by a limit; wrong answers that were do not enter the average
    group     [R] int64 dense ids
    where     [R] bool, compared (default: all): whose lengths enter

    True without (complete) wrong answers to be longer than, False without correct ones.
    """
    counts = torch.ones_like(correct) if where is None else where
    right, wrong = counts & correct, counts & complete & ~correct
    longer = levels.max(length, group, right) > levels.mean(length, group, wrong)
    return (levels.count(group, right) > 0) & ((levels.count(group, wrong) == 0) | longer)


@dataclass(frozen=True)
class LengthSignal(WeightPart):
    """1 for a group where `long_pays`, else `otherwise`: ADORA's rule for texts, which lets answers grow.

    otherwise  weight of the other groups, at least 0

    Lengths count the policy's own (trainable) tokens; a trajectory without a verdict is correct where its outcome is
    above 0. Groups that are all right have 1, all wrong `otherwise`: only credit that is not centred shows it.

    Source: ADORA, arXiv 2602.10019, and its code for texts.
    """

    otherwise: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.otherwise < float("inf"):
            raise ConfigError(f"weight.length_signal.otherwise is {self.otherwise}; it is a weight of at least 0")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        pays = long_pays(forest.lengths(), correct(forest), ~forest.truncated, group, forest.compared)
        weight = torch.where(pays, torch.ones((), dtype=torch.float64), self.otherwise)
        return forest.to_path(weight, "R")
