"""Credit of a whole trajectory, scaled by its group's spread where success is open and by its mean where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import group_relative

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def mixed_scale(
    outcome: Tensor, group: Tensor, rate: Tensor, ddof: int = 1, eps: float = 1e-6, where: Tensor | None = None
) -> Tensor:
    """A = (1 - l) (outcome - mean) / (std + eps) + l (outcome - mean) / (mean + eps), l = 1 - 4 rate (1 - rate).

    outcome  [R] any float dtype, >= 0;   group  [R] int64 dense ids, -1 = in no group
    rate     [R] share of the group's attempts that succeed
    where    [R] bool, compared (default: all)

    Returns [R] float64. Over a group it adds up to 0. At rate 1/2 this is GRPO, towards 0 and 1 MaxRL, so that a lone
    success is given more than by GRPO, and a lone failure towards -1 however large the group. Exactly 0: a group of
    one, of equal outcomes; where the mean is not above 0 its term is left out.

    Source: MAPO, arXiv 2509.18849, and its code (`ddof` 1, eps 1e-6 on both).
    """
    certain = 1.0 - 4.0 * rate.to(torch.float64) * (1.0 - rate.to(torch.float64))
    by_spread = group_relative(outcome, group, "mean", "std", ddof, eps, where=where)
    by_mean = group_relative(outcome, group, "mean", "mean", ddof, eps, where=where)
    return (1.0 - certain) * by_spread + certain * by_mean


@dataclass(frozen=True)
class MixedScale(CreditPart):
    """`mixed_scale` (MAPO) of the outcome, the same for every token of a trajectory.

    rate is the share of the group's compared trajectories whose `success` is 1; a trajectory without a verdict counts
    as a success where its outcome is above 0.
    """

    ddof: int = 1
    eps: float = 1e-6

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        correct = torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0)
        rate = levels.mean(correct, group, forest.compared)
        return forest.to_path(mixed_scale(forest.outcome, group, rate, self.ddof, self.eps, where=forest.compared), "R")
