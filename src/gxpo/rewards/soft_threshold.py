"""A score that is steep below a threshold and nearly flat above it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart


def soft_threshold(outcome: Tensor, threshold: float = 0.8, above: float = 0.01, below: float = 1.0) -> Tensor:
    """threshold + above ln(1 + d) where d = outcome - threshold >= 0, else
    threshold - (e^(-below d) - 1) / (e^below - 1); float64, shaped as `outcome`, nan stays nan.

    outcome  of about 0 to 1: far below 0 it falls exponentially
    above    how much of a difference between good scores is left;   below  how much steeper it gets the worse they are

    Continuous and increasing. Source: TempSamp-R1 (arXiv 2509.18056), soft advantage.

    >>> soft_threshold(torch.tensor([1.0, 0.8, 0.5, 0.0], dtype=torch.float64))
    tensor([0.8018, 0.8000, 0.5964, 0.0868], dtype=torch.float64)
    """
    d = outcome.to(torch.float64) - threshold
    fall = (-below * d.clamp_max(0.0)).expm1() / math.expm1(below)
    return threshold + torch.where(d >= 0, above * d.clamp_min(0.0).log1p(), -fall)


@dataclass(frozen=True)
class SoftThreshold(RewardPart):
    """`soft_threshold` of the outcome under `reward.shape`: one excellent member no longer sets all others back."""

    threshold: float = 0.8
    above: float = 0.01
    below: float = 1.0

    def __post_init__(self) -> None:
        if self.above <= 0 or self.below <= 0:
            raise ConfigError(
                f"soft_threshold: above {self.above} and below {self.below} must be positive, or better scores are "
                "not worth more"
            )

    def __call__(self, forest: Forest) -> Tensor:
        return soft_threshold(forest.outcome, self.threshold, self.above, self.below)
