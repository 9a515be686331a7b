"""Group-relative advantages per denoising step (Flow-GRPO, TempFlow-GRPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from gxpo import grouped
from gxpo.credit.base import CreditPart
from gxpo.registry import part
from gxpo.trees import dense

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

SegmentScale = Literal["std", "batch_std", "none"]


@torch.no_grad()
def segment_relative(
    outcome: Tensor,
    unit: Tensor,
    column: Tensor,
    batch: Tensor,
    scale: str = "std",
    ddof: int = 0,
    eps: float = 1e-4,
    bound: float = 5.0,
    where: Tensor | None = None,
) -> Tensor:
    """A = clamp((outcome - mean) / (std + eps), -bound, bound), the mean over the compared of one group and segment.

    outcome  [n] of the trajectory; any float dtype, the arithmetic is in float64
    unit     [n] int64 dense ids of (trajectory, segment): the entries of a unit count once, whatever their number
    column   [n] int64 dense ids of (group, segment) to compare within; -1 = not compared
    batch    [n] int64 dense ids of the segment in all groups; -1 = none
    scale    "std" of the column; "batch_std", of the segment's outcomes in all groups, before centring; "none".
             `ddof` degrees of freedom are taken off
    where    [n] bool, compared (default: all)

    Returns [n] float64, exactly 0 where there is nothing to compare: a column of one, or of equal outcomes (with
    "batch_std" too).

    With one segment this is `group_relative`, but for the bound. Source: Flow-GRPO, arXiv 2505.05470, and TempFlow-
    GRPO, arXiv 2508.04324, with their reference code (numpy std: ddof 0, eps 1e-4, bound 5).
    """
    place = dense(unit)
    first = torch.full((int(place.max()) + 1 if len(place) else 0,), len(place))
    first = first.scatter_reduce_(0, place, torch.arange(len(place)), "amin")
    x, ids = outcome.to(torch.float64)[first], column[first]
    enters = None if where is None else where[first]
    if scale == "batch_std":
        centred = grouped.normalize(x, ids, enters, scale="none")
        spread = grouped.std(x, batch[first], enters, ddof)
        advantage = torch.where(spread > 0, centred / (spread + eps), torch.zeros_like(centred))
    else:
        advantage = grouped.normalize(x, ids, enters, scale=scale, ddof=ddof, eps=eps)
    return advantage.clamp(-bound, bound)[place]


@part("segment_relative", stage="credit")
@dataclass(frozen=True)
class SegmentRelative(CreditPart):
    """Per-segment group-relative advantage (Flow-GRPO): compared in the segments where a trajectory has trained tokens.

    For samplers whose segments are denoising steps: independent samples are trained in all of them, and each step is
    given the trajectory's advantage; a branch that leaves a common path at one step is trained and compared there.
    Tokens outside any segment, and untrained ones, have 0.
    """

    scale: SegmentScale = "std"
    ddof: int = 0
    eps: float = 1e-4
    bound: Annotated[float, Gt(0)] = 5.0

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        entries = (forest.path_trainable & (forest.segment[forest.path_token] >= 0)).nonzero().squeeze(1)
        out = torch.zeros(forest.n_entries, dtype=torch.float64)
        out[entries] = segment_relative(
            forest.to_path(forest.outcome, "R")[entries],
            forest.ids("trajectory", "segment", axis="P")[entries],
            forest.ids("segment", axis="P")[entries],
            forest.segment[forest.path_token[entries]],
            self.scale,
            self.ddof,
            self.eps,
            self.bound,
            where=forest.to_path(forest.compared, "R")[entries],
        )
        return out
