"""Group-relative advantages reshaped by the group's success rate: GRPO-LEAD, MAPO, LENS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo import grouped
from gxpo.credit.base import CreditPart
from gxpo.credit.relative import Statistic, group_relative
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


def succeeds(forest: Forest) -> Tensor:
    """Successful trajectories, [R] bool: `success` is 1; without a verdict, the outcome is above 0."""
    return torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0)


def success_rate(forest: Forest) -> Tensor:
    """Success rate of the group's compared trajectories, [R] float64."""
    return grouped.mean(succeeds(forest), forest.ids("group", axis="R"), forest.compared)


# ---------------------------------------------------------------- GRPO-LEAD
@torch.no_grad()
def logistic_weight(
    rate: Tensor, low: float = 0.4, high: float = 1.5, steepness: float = 10.0, middle: float = 0.75
) -> Tensor:
    """w(rate) = low + (high - low) / (1 + exp(steepness (rate - middle))), float64: falls from high to low.

    >>> [round(w, 6) for w in logistic_weight(torch.tensor([0.75, 0.25])).tolist()]
    [0.95, 1.492638]
    """
    falling = torch.sigmoid(-steepness * (rate.to(torch.float64) - middle))
    return low + (high - low) * falling


@torch.no_grad()
def difficulty_weighted(
    advantage: Tensor,
    rate: Tensor,
    low: float = 0.4,
    high: float = 1.5,
    steepness: float = 10.0,
    middle: float = 0.75,
) -> Tensor:
    """advantage * w(rate) where it is positive, advantage * w(1 - rate) elsewhere, with w of `logistic_weight`.

    advantage  [R] any float dtype;   rate  [R] share of the group's attempts that are correct

    Successes at hard tasks weigh more, and so do failures at easy ones; the second curve is w at 1 - rate, which is not
    1 - w. The sign is the advantage's: a long correct answer of an easy group may be below the mean.
    Source: GRPO-LEAD (arXiv 2504.09696).
    """
    constants, rate = (low, high, steepness, middle), rate.to(torch.float64)
    up, down = logistic_weight(rate, *constants), logistic_weight(1.0 - rate, *constants)
    return advantage.to(torch.float64) * torch.where(advantage > 0, up, down)


@part("difficulty_weighted", stage="credit")
@dataclass(frozen=True)
class DifficultyWeighted(Statistic):
    """`difficulty_weighted` (GRPO-LEAD) of the group-relative outcome: rare successes and failures weigh more.

    low, high, steepness, middle  of `logistic_weight`, at the group's `success_rate`
    """

    low: Annotated[float, Ge(0)] = 0.4
    high: Annotated[float, Ge(0)] = 1.5
    steepness: float = 10.0
    middle: float = 0.75

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        constants = (self.low, self.high, self.steepness, self.middle)
        found = difficulty_weighted(self.of_outcome(forest), success_rate(forest), *constants)
        return forest.to_path(found, "R")


# ---------------------------------------------------------------- MAPO
@torch.no_grad()
def mixed_scale(
    outcome: Tensor, group: Tensor, rate: Tensor, ddof: int = 1, eps: float = 1e-6, where: Tensor | None = None
) -> Tensor:
    """A = (1 - l) (outcome - mean) / (std + eps) + l (outcome - mean) / (mean + eps), l = 1 - 4 rate (1 - rate).

    outcome  [R] any float dtype, >= 0;   group  [R] int64 dense ids, -1 = in no group
    rate     [R] share of the group's attempts that succeed
    where    [R] bool, compared (default: all)

    Returns [R] float64. Over a group it adds up to 0. At rate 1/2 this is GRPO, towards 0 and 1 MaxRL, so that a lone
    success is given more than by GRPO, and a lone failure towards -1 however large the group. Exactly 0: a group of
    one, of equal outcomes; where the mean is not above 0 its term is left out.

    Source: MAPO, arXiv 2509.18849, and its code (`ddof` 1, eps 1e-6 on both).
    """
    certain = 1.0 - 4.0 * rate.to(torch.float64) * (1.0 - rate.to(torch.float64))
    by_spread = group_relative(outcome, group, "mean", "std", ddof, eps, where=where)
    by_mean = group_relative(outcome, group, "mean", "mean", ddof, eps, where=where)
    return (1.0 - certain) * by_spread + certain * by_mean


@part("mixed_scale", stage="credit")
@dataclass(frozen=True)
class MixedScale(CreditPart):
    """Mixed advantage (MAPO): `mixed_scale` of the outcome at the group's `success_rate`."""

    ddof: int = 1
    eps: float = 1e-6

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        given = forest.outcome, forest.ids("group", axis="R"), success_rate(forest)
        return forest.to_path(mixed_scale(*given, self.ddof, self.eps, where=forest.compared), "R")


# ---------------------------------------------------------------- LENS
@part("negative_groups", stage="credit")
@dataclass(frozen=True)
class NegativeGroups(Statistic):
    """Group-relative advantage, with alpha (outcome - center) in groups without a success (LENS).

    What tells the answers of an all-wrong group apart is small (a penalty of at most 1 / G): divided by its own spread
    it would weigh as much as a success. alpha is such a group's weight in the loss. Equal outcomes give 0; the part is
    for outcomes that a method's own reward has made unequal, and groups must not be dropped before.

    Source: LENS, arXiv 2510.08696.
    """

    alpha: Annotated[float, Ge(0)] = 0.25

    learns_from_equal_groups = True

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        solved = success_rate(forest) > 0
        centred = self.of_outcome(forest, scale="none")
        return forest.to_path(torch.where(solved, self.of_outcome(forest), self.alpha * centred), "R")
