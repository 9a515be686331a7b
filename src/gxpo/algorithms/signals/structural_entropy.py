"""Rank of truncated answers by their entropies (R^3): a high peak over a low mean goes before."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part


@torch.no_grad()
def dominance_rank(peak: Tensor, mean: Tensor, group: Tensor, where: Tensor) -> Tensor:
    """Rank / (N - 1) by the number of the group's N counting members that each one dominates, 1 for the most.

    peak, mean  [R] nats: i dominates j where peak_i > peak_j and mean_i < mean_j (by more than 1e-5 nats)
    where       [R] bool, counting members; the others have 0, and so has one alone

    Members that dominate equally many share their mean rank. [R] float64. Source: R^3, arXiv 2601.19620.

    >>> peak, mean = torch.tensor([2.0, 1.5, 2.2, 1.0]), torch.tensor([0.5, 0.6, 0.7, 0.4])
    >>> one = torch.zeros(4, dtype=torch.int64)
    >>> dominance_rank(peak, mean, one, one == 0).tolist()
    [1.0, 0.3333333333333333, 0.3333333333333333, 0.3333333333333333]
    """
    # Entropies of two forward passes differ by rounding: settled, or that would decide who dominates.
    high, low = (grouped.settled(x.to(torch.float64), group, absolute=grouped.FORWARD) for x in (peak, mean))
    is_counted_R = where & (group >= 0)
    pairs = (group[:, None] == group) & is_counted_R[:, None] & is_counted_R
    n_dominated = (pairs & (high[:, None] > high) & (low[:, None] < low)).sum(1)
    return grouped.rank(n_dominated, group, is_counted_R) / (grouped.count(group, is_counted_R) - 1).clamp_min(1)


@part("structural_entropy", stage="signal", gives={"structural_rank": "R"})
def structural_entropy(
    forest: Forest, entropy: Tensor, *, share: Annotated[float, Interval(gt=0, le=1)] = 0.2
) -> Tensor:
    """The signal "structural_rank" [R]: `dominance_rank` among the group's truncated, scored and compared answers.

    share  of an answer's trained tokens, rounded down, at least one: their largest entropies make up its peak

    Entropies are the policy's at the start of the step. Answers that end by themselves have 0.
    Source: R^3, arXiv 2601.19620.
    """
    n = forest.n_trajectories
    peak, mean = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    # Answers that end by themselves are judged by their verdict; only truncated ones are ranked.
    is_truncated_R = forest.truncated & forest.scored & forest.compared & (forest.lengths() > 0)
    for r in is_truncated_R.nonzero().squeeze(1).tolist():
        rows = forest.path_of(r)
        entropies = entropy[rows[forest.path_trainable[rows]]].to(torch.float64)
        peak[r], mean[r] = entropies.topk(max(1, int(share * len(entropies)))).values.mean(), entropies.mean()
    return dominance_rank(peak, mean, forest.ids("group", axis="R"), is_truncated_R)
