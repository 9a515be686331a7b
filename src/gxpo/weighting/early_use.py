"""Right answers that reach for a tool early count more than those that do so late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart
from gxpo.weighting.verdicts import correct

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def early_bonus(first: Tensor, length: Tensor, group: Tensor, eligible: Tensor, where: Tensor, delta: float) -> Tensor:
    """[R] float64: b = delta (p_i - mean p) / mean L, means over the group's members of `where`; 0 where not eligible.

    first, length  [R] place p of the first use and length L, in tokens; first may be nan where not eligible
    group  [R] int64;   eligible, where  [R] bool: who is given a bonus, who is in the means
    """
    p = torch.where(eligible, first.to(torch.float64), 0.0)
    mean, size = levels.mean(p, group, where), levels.mean(length, group, where)
    known = eligible & (size > 0)
    return torch.where(known, delta * (p - mean) / torch.where(known, size, 1.0), 0.0)


@dataclass(frozen=True)
class EarlyUse(WeightPart):
    """w = 1 + clip(b / A, -bound, bound), b the `early_bonus` of right answers with a use; 1 for all others.

    delta  credit per length of the answer; below 0: earlier is better
    bound  below 1, so that the bonus never turns the credit's sign

    So w A = A + clip(b, -bound |A|, bound |A|): a bonus on the advantage itself, after all normalisation; with a gate
    that is linear in the credit, as the clips are, weighting the gated loss is the same. Means are over the group's
    compared right answers with a use. Reads signal `first_use` [R], nan where there is none.

    Source: ASPO, arXiv 2508.19201, eq. 2.
    """

    delta: float = -2.0
    bound: float = 0.7

    needs = ("first_use",)

    def __post_init__(self) -> None:
        if not 0 <= self.bound < 1:
            raise ConfigError(f"weight.early_use.bound is {self.bound}; it is from 0 to below 1")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        first = signals["first_use"]
        eligible = correct(forest) & first.isfinite()
        group = forest.ids("group", axis="R")
        bonus = early_bonus(first, forest.lengths(), group, eligible, eligible & forest.compared, self.delta)
        relative = forest.to_path(bonus, "R") / torch.where(credit != 0, credit, 1.0)
        return 1.0 + torch.where(credit != 0, relative.clamp(-self.bound, self.bound), 0.0)
