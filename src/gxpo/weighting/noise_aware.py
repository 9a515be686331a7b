"""Weights for groups whose verdicts may be wrong: the fewer on one side, the more of them may be errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart
from gxpo.weighting.verdicts import success_rate

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def noise_aware(rate: Tensor, flip: float = 0.1, eps: float = 1e-8) -> Tensor:
    """w = (1 - 2 flip) t (1 - t) / (sqrt(rate (1 - rate) + eps) sqrt(t (1 - t) + eps)), float64, shaped as `rate`.

    rate  observed share of correct attempts in a group
    flip  probability that a verdict is wrong, either way; t = (rate - flip) / (1 - 2 flip) held in [0, 1] is the share
          that is then expected to be right

    About (1 - 2 flip) times the ratio of the two standard deviations: the factor on the normalised advantage that
    leaves the least squared error against the advantage of the true verdicts. w(rate) = w(1 - rate); 0 where one kind
    of verdict is no commoner than errors; 1 on every mixed group at flip 0.

    Source: S-GRPO, arXiv 2508.05928, and its code.

    >>> [round(w, 6) for w in noise_aware(torch.tensor([0.0, 0.125, 0.25, 0.5])).tolist()]
    [0.0, 0.420883, 0.72111, 0.8]
    """
    r = rate.to(torch.float64)
    t = ((r - flip) / (1 - 2 * flip)).clamp(0.0, 1.0)
    seen, true = r * (1 - r), t * (1 - t)
    return (1 - 2 * flip) * true / ((seen + eps).sqrt() * (true + eps).sqrt())


@dataclass(frozen=True)
class NoiseAware(WeightPart):
    """`noise_aware` of each trajectory's group, by the verdicts of its compared trajectories.

    A trajectory without a verdict counts as correct where its outcome is above 0.
    """

    flip: float = 0.1
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not 0 <= self.flip < 0.5:
            raise ConfigError(f"weight.noise_aware.flip is {self.flip}; it is a probability from 0 to below 0.5")
        if not self.eps > 0:
            raise ConfigError(f"weight.noise_aware.eps is {self.eps}; it is above 0")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        return forest.to_path(noise_aware(success_rate(forest), self.flip, self.eps), "R")
