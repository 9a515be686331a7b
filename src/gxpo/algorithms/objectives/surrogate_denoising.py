"""Surrogate of denoising steps: a clip that widens towards the sample, and a discount of early steps (DPPO)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.objectives.surrogate import Entries, Positive, Width, clip_loss
from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of
from gxpo.parts.registry import part


def clip_schedule(place: Tensor, length: Tensor, low: float, high: float, rate: float) -> Tensor:
    """Width of the clip of each trained step: from `low` at the first to `high` at the last, exponentially.

    place, length  int64: number of the step among the trained ones of its trajectory, and how many these are

    low + (high - low) (e^(rate u) - 1) / (e^rate - 1), u = place / (length - 1); `high` where there is one step.

    >>> ten = torch.tensor(10)
    >>> [round(clip_schedule(torch.tensor(i), ten, 1e-3, 1e-2, 3.0).item(), 6) for i in (0, 4, 9)]
    [0.001, 0.002317, 0.01]
    """
    share = torch.where(length > 1, place.to(torch.float64) / (length - 1).clamp_min(1), 1.0)
    return low + (high - low) * (rate * share).expm1() / math.expm1(rate)


@part("denoising_clip", stage="surrogate", couples="trajectory")
def denoising_clip(
    x: Entries,
    *,
    clip_first: Width = 1e-3,
    clip_last: Width = 1e-2,
    rate: Positive = 3.0,
    gamma_denoise: Annotated[float, Interval(gt=0, le=1)] = 0.99,
) -> tuple[Tensor, Tensor]:
    """PPO clip of denoising steps (DPPO): widths by `clip_schedule`, the advantage of step i times gamma^(K - 1 - i).

    clip_first, clip_last  of the noisiest and the last of the K trained steps of a sample
    rate                   of the exponential between them
    gamma_denoise          gamma, the discount of early steps

    Source: DPPO, arXiv 2409.00588, and its code, which divides by 0 where one step is trained.
    """
    n = int(x.trajectory.max()) + 1 if x.trajectory.numel() else 0
    place = torch.arange(len(x.trajectory)) - begins_of(x.trajectory, n)[x.trajectory]
    length = grouped.count(x.trajectory)
    width = clip_schedule(place, length, clip_first, clip_last, rate).to(x.ratio)
    return clip_loss(x, 1 - width, 1 + width, factor=(gamma_denoise ** (length - 1 - place)).to(x.ratio))
