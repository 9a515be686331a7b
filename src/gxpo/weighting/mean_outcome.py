"""Groups weighed by their mean outcome: what the policy can do already counts less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def ramp(mean: Tensor, hard: float, easy: float, least: float = 0.5) -> Tensor:
    """1 up to a mean of `hard`, `least` from `easy` on, a straight line between; float64.

    >>> ramp(torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5]), hard=1.0, easy=2.0).tolist()
    [1.0, 1.0, 0.75, 0.5, 0.5]
    """
    return least + (1.0 - least) * ((easy - mean.to(torch.float64)) / (easy - hard)).clamp(0.0, 1.0)


@dataclass(frozen=True)
class MeanOutcome(WeightPart):
    """`ramp` of the mean outcome of a group's compared trajectories (VITAL's DGRPO).

    hard, easy  mean outcomes, in units of the outcome; least  the weight of an easy group

    A factor that all rewards of a group share is gone once they are divided by their standard deviation. As a weight it
    stays, whatever the credit is; where nothing is scaled, it is the same as scaling the rewards. Groups without
    compared trajectories have weight 1.
    """

    hard: float = 1 / 3
    easy: float = 2 / 3
    least: float = 0.5

    def __post_init__(self) -> None:
        if not (self.hard < self.easy and 0 <= self.least <= 1):
            raise ConfigError(
                f"weight.mean_outcome: hard ({self.hard:g}) must be below easy ({self.easy:g}), and least "
                f"({self.least:g}) from 0 to 1"
            )

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        known = levels.count(group, forest.compared) > 0
        weight = ramp(levels.mean(forest.outcome, group, forest.compared), self.hard, self.easy, self.least)
        return forest.to_path(torch.where(known, weight, 1.0), "R")
