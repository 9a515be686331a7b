"""Credit weighted by how hard a group's task is for the policy: successes and failures by opposite curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import Center, Scale, group_relative
from gxpo.errors import ConfigError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


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


@dataclass(frozen=True)
class DifficultyWeighted(CreditPart):
    """`difficulty_weighted` (GRPO-LEAD) of the outcome's group-relative advantage, the same for every token.

    rate is the share of the group's compared trajectories whose `success` is 1; a trajectory without a verdict counts
    as correct where its outcome is above 0 (GRPO-LEAD's own scores are above 0 exactly for correct answers).
    """

    low: float = 0.4
    high: float = 1.5
    steepness: float = 10.0
    middle: float = 0.75
    center: Center = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6

    def __post_init__(self) -> None:
        one_of("credit.center", self.center, ("mean", "leave_one_out", "median", "none"))
        one_of("credit.scale", self.scale, ("std", "none"))
        if min(self.low, self.high) < 0:
            raise ConfigError("credit.low and credit.high are weights: neither may be negative")
        if self.center == "none" and self.scale == "none":
            object.__setattr__(self, "on_equal", "signal")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        correct = torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0)
        rate = levels.mean(correct, group, forest.compared)
        advantage = group_relative(
            forest.outcome, group, self.center, self.scale, self.ddof, self.eps, where=forest.compared
        )
        constants = (self.low, self.high, self.steepness, self.middle)
        return forest.to_path(difficulty_weighted(advantage, rate, *constants), "R")
