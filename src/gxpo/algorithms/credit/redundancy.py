"""Diversity-adjusted rewards (DRA-GRPO): similar answers share one reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.algorithms.credit.relative import Relative
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def diversity_adjusted(
    outcome: Tensor, embedding: Tensor, group: Tensor, where: Tensor | None = None, eps: float = 1e-6
) -> Tensor:
    """r' = r / (max(1, sum_j cos(e_i, e_j)) + eps) over the group's compared members j and i itself: [R] float64.

    outcome    [R] any float dtype
    embedding  [R, H] of any length; a zero vector is like nothing
    group      [R] int64 dense ids, -1 = in no group;   where  [R] bool, compared (default: all)

    The sum is 1 for an attempt unlike all others and G where all G say the same: so many share one reward. Where the
    others point away it would fall below 1, or to 0: it is held at 1. Rewards below 0 are divided alike, so a redundant
    failure costs less.

    Source: DRA-GRPO (arXiv 2505.09655, the graph cut), whose code divides without the bound.

    >>> e = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> diversity_adjusted(torch.ones(3), e, torch.zeros(3).long(), eps=0.0).tolist()
    [0.5, 0.5, 1.0]
    """
    unit = torch.nn.functional.normalize(embedding.to(torch.float64), dim=1)
    enters = group >= 0 if where is None else (group >= 0) & where
    rows = enters.nonzero().squeeze(1)
    n = int(group.max()) + 1 if len(rows) else 1
    total = torch.zeros(n, unit.shape[1], dtype=torch.float64).index_add_(0, group[rows], unit[rows])
    alike = (unit * total[group.clamp(0, n - 1)]).sum(1) + (~enters).to(torch.float64)
    return outcome.to(torch.float64) / (torch.where(group >= 0, alike, 1.0).clamp_min(1.0) + eps)


@part("diversity_adjusted", stage="credit")
@dataclass(frozen=True)
class DiversityAdjusted(Relative):
    """Diversity-adjusted advantage (DRA-GRPO): `Relative` of the `diversity_adjusted` outcome, equal for all tokens.

    Reads signal "embedding" [R, H]. A group of equal outcomes other than 0 learns: what is unlike the others earns
    more (less, where outcomes are below 0). One of outcomes 0 does not.
    """

    needs = ("embedding",)
    learns_from_equal_groups = True

    def values(self, forest: Forest, signals: Signals) -> tuple[Tensor, str]:
        group = forest.ids("group", axis="R")
        return diversity_adjusted(forest.outcome, signals["embedding"], group, forest.compared), "R"
