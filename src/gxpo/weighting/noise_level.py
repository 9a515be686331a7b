"""Weights for the steps of a sampler by how much noise each of them injects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import GxpoError
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def noise_level(scale: Tensor, step: Tensor, trained: Tensor) -> Tensor:
    """w = s / mean over the trained steps of s.

    scale    [P] s, the standard deviation of the noise that the entry's step adds
    step     [P] int64 dense ids of the denoising step; -1 none
    trained  [P] bool: the steps that any of these entries are in make up the mean, each counted once

    Returns [P] float64, 1 where nothing is trained. Summed over the trained steps the weights give their number, so
    the size of an update does not depend on the noise level or on the sampler's schedule.

    Source: TempFlow-GRPO, arXiv 2508.04324. Its code multiplies by 2.25, which is this mean's inverse for 10 steps of
    its schedule at level 0.7, and for no other.
    """
    trained = trained & (step >= 0)
    s = torch.where(trained, scale.to(torch.float64), torch.zeros((), dtype=torch.float64))
    alike = levels.count(step, trained)
    once = torch.where(trained, 1 / alike.clamp_min(1), torch.zeros_like(s))  # the entries of a step count as one
    mean = levels.mean(s, torch.zeros_like(step), weight=once)
    return torch.where(trained & (mean > 0), s / torch.where(mean > 0, mean, torch.ones_like(mean)), torch.ones_like(s))


@dataclass(frozen=True)
class NoiseLevel(WeightPart):
    """`noise_level` of what the rollouts store as `extras["noise_scale"]`; their segments are the steps."""

    requires = ("latents",)

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        if "noise_scale" not in forest.extras:
            raise GxpoError(
                "weight noise_level reads extras['noise_scale'], and these rollouts have none: sample them with "
                "rollout denoise or denoise_tree"
            )
        scale, segment = forest.extras["noise_scale"][forest.path_token], forest.segment[forest.path_token]
        return noise_level(scale, segment, forest.path_trainable)
