"""Group-relative advantages per denoising step (Flow-GRPO, TempFlow-GRPO)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.forest import grouped
from gxpo.forest.grouped import dense
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@column("P")
def batch(forest: Forest, trainable: Tensor) -> Tensor:
    """Segment ids of the trained tokens, -1 elsewhere."""
    return torch.where(trainable, forest.segment[forest.path_token], -1)


@column("P")
def peers(forest: Forest, batch: Tensor) -> Tensor:
    """Ids of (group, segment)."""
    return torch.where(batch >= 0, forest.ids("segment", axis="P"), -1)


@column("P")
def unit(forest: Forest, batch: Tensor) -> Tensor:
    """Ids of (trajectory, segment)."""
    return torch.where(batch >= 0, forest.ids("trajectory", "segment", axis="P"), -1)


@part("segment_relative", stage="credit", axis="P")
def segment_relative(
    outcome: Tensor,
    unit: Tensor,
    peers: Tensor,
    batch: Tensor,
    where: Tensor | None = None,
    *,
    scale: Literal["std", "batch_std", "none"] = "std",
    ddof: int = 0,
    eps: float = 1e-4,
    bound: Annotated[float, Gt(0)] = 5.0,
) -> Tensor:
    """Per-segment group-relative advantage (Flow-GRPO): compared in the segments where a trajectory has trained tokens.

    A = clamp((outcome - mean) / (std + eps), -bound, bound), the mean over the compared of one group and segment

    outcome  [P] of the trajectory; any float dtype, the arithmetic is in float64
    unit     [P] int64 ids of (trajectory, segment): the entries of a unit count once, whatever their number
    peers    [P] int64 dense ids of (group, segment) to compare within; -1 = not compared: untrained, or in no segment
    batch    [P] int64 dense ids of the segment across groups; -1 = none
    where    [P] bool, compared (default: all)
    scale    "std" of the peers; "batch_std", of the segment's outcomes in all groups, before centring; "none".
             `ddof` degrees of freedom are taken off

    Returns [P] float64, exactly 0 where there is nothing to compare: a unit alone, or equal outcomes (with "batch_std"
    too). For samplers whose segments are denoising steps: independent samples are trained in all of them, and each step
    is given the trajectory's advantage; a branch that leaves a common path at one step is trained and compared there.

    With one segment this is `group_relative`, but for the bound. Source: Flow-GRPO, arXiv 2505.05470, and TempFlow-
    GRPO, arXiv 2508.04324, with their reference code (numpy std: ddof 0, eps 1e-4, bound 5).
    """
    unit_index = dense(unit)
    # A denoising step counts once, whatever its number of tokens: its first entry stands for it.
    first_entry = torch.full((int(unit_index.max()) + 1 if len(unit_index) else 0,), len(unit_index))
    first_entry = first_entry.scatter_reduce_(0, unit_index, torch.arange(len(unit_index)), "amin")
    x, ids = outcome.to(torch.float64)[first_entry], peers[first_entry]
    is_compared = None if where is None else where[first_entry]
    # The std is of the step in all groups, before any centre is taken off.
    if scale == "batch_std":
        centred = grouped.normalize(x, ids, is_compared, scale="none")
        spread = grouped.std(x, batch[first_entry], is_compared, ddof)
        advantage = torch.where(spread > 0, centred / (spread + eps), torch.zeros_like(centred))
    else:
        advantage = grouped.normalize(x, ids, is_compared, scale=scale, ddof=ddof, eps=eps)
    return advantage.clamp(-bound, bound)[unit_index]
