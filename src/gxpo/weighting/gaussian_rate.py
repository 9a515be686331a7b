"""Weights for groups by how near their success rate is to a middle one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart
from gxpo.weighting.verdicts import one_each, success_rate

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def gaussian_rate(rate: Tensor, center: float = 0.5, sigma: float = 0.25) -> Tensor:
    """exp(-(rate - center)^2 / (2 sigma^2)), float64, shaped as `rate`.

    >>> gaussian_rate(torch.tensor([0.0, 0.25, 0.5, 1.0])).round(decimals=6).tolist()
    [0.135335, 0.606531, 1.0, 0.135335]
    """
    return (-((rate.to(torch.float64) - center) ** 2) / (2 * sigma**2)).exp()


@dataclass(frozen=True)
class GaussianRate(WeightPart):
    """`gaussian_rate` of each group's success rate, over its mean over the groups of the step.

    center, sigma  of the success rate, in shares

    Weighting the loss like this is, in expectation, drawing questions in proportion to the Gaussian: over the groups
    the weights have mean 1. The rate is of the verdicts of compared trajectories; one without a verdict counts as
    correct where its outcome is above 0.

    Source: FG-ExPO, arXiv 2605.11403, where questions are drawn by it.
    """

    center: float = 0.5
    sigma: float = 0.25

    def __post_init__(self) -> None:
        if not (0 <= self.center <= 1 and 0 < self.sigma < float("inf")):
            raise ConfigError(
                f"weight.gaussian_rate.center ({self.center}) is in [0, 1] and .sigma ({self.sigma}) above 0"
            )

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        weight = gaussian_rate(success_rate(forest), self.center, self.sigma)
        groups = one_each(forest.ids("group", axis="R"), forest.compared)
        mean = levels.mean(weight, torch.zeros(len(weight), dtype=torch.int64), groups)
        return forest.to_path(torch.where(mean > 0, weight / torch.where(mean > 0, mean, 1.0), 1.0), "R")
