"""A component brought from the range in which it is to count to [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart
from gxpo.rewards.component import read_component


def rescaled(value: Tensor, low: float, high: float) -> Tensor:
    """(value - low) / (high - low), held in [0, 1]; float64, nan stays.

    >>> rescaled(torch.tensor([0.2, 0.5, 0.9]), 0.25, 0.75).tolist()
    [0.0, 0.5, 1.0]
    """
    return ((value.to(torch.float64) - low) / (high - low)).clamp(0.0, 1.0)


@dataclass(frozen=True)
class Rescaled(RewardPart):
    """`reward.shape`: the outcome with component `component`, which counts in it with weight 1, in its `rescaled` form.

    low, high  values of it that are worth 0 and 1: hard tasks whose best attempts stay far below 1 then count as much
               as easy ones. 0 and 1 change nothing in a component from 0 to 1

    An outcome without the component (of another task of the mixture) stays.

    Source: VITAL (arXiv 2508.04416), the task-level half of its DGRPO, there for the overlap of time spans.
    """

    component: str = "iou"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"rescaled: low ({self.low:g}) must be below high ({self.high:g})")

    def __call__(self, forest: Forest) -> Tensor:
        value = read_component(forest, self.component, "rescaled", share=False)
        return forest.outcome + torch.where(value.isnan(), 0.0, rescaled(value, self.low, self.high) - value)
