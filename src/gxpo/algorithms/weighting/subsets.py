"""Subsets: the top k of each unit, and the subset of largest variance."""

from __future__ import annotations

import torch
from torch import Tensor

from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of


def largest(score: Tensor, unit: Tensor, quota: Tensor, where: Tensor) -> Tensor:
    """Top `quota` members by score in each unit, [n] bool; ties (to 1e-12) go to the earlier member.

    score  [n];   unit  [n] int64, -1 = in none, and not kept
    quota  [n] the same for all of a unit
    where  [n] bool, which compete; the others are kept where they come up to the least that is kept of their unit

    >>> one = torch.zeros(4, dtype=torch.int64)
    >>> largest(torch.tensor([1.0, 3.0, 3.0, 2.0]), one, one + 2, one == 0).tolist()
    [False, True, True, False]
    """
    score = grouped.settled(score, unit)
    rows = (where & (unit >= 0)).nonzero().squeeze(1)
    order = rows[torch.argsort(score[rows], descending=True, stable=True)]
    order = order[torch.argsort(unit[order], stable=True)]
    own = unit[order]
    begins = begins_of(own, int(own.max()) + 1 if len(own) else 0)
    kept = torch.zeros(score.shape, dtype=torch.bool)
    kept[order] = torch.arange(len(order)) - begins[own] < quota[order]
    least = grouped.min(score, unit, kept)
    return kept | (~where & (grouped.count(unit, kept) > 0) & (score >= least))


@torch.no_grad()
def max_variance(x: Tensor, k: int, where: Tensor) -> Tensor:
    """Subset of `k` counting members whose values have the largest variance, [n] bool.

    The j smallest and the k - j largest for the best j (of equally good ones the smallest): variance is convex in each
    member. A member that does not count is kept where it is as extreme as one that is kept. k >= 1.

    >>> a = torch.tensor([1.5, 0.9, 0.2, -0.1, -0.8, -1.7])
    >>> a[max_variance(a, 4, a < 9)].tolist()
    [1.5, 0.8999999761581421, -0.800000011920929, -1.7000000476837158]
    """
    rows = where.nonzero().squeeze(1)
    n, k = len(rows), min(k, len(rows))
    if k == n:
        return torch.ones_like(where)
    x = grouped.settled(x, torch.zeros(x.shape, dtype=torch.int64))
    own = x[rows]
    order = torch.argsort(own, stable=True)
    values = own[order]
    values, zero = values - values.mean(), values.new_zeros(1)
    total, square = torch.cat([zero, values.cumsum(0)]), torch.cat([zero, values.square().cumsum(0)])
    low = torch.arange(k + 1)
    high = n - (k - low)
    spread = square[low] + square[n] - square[high] - (total[low] + total[n] - total[high]).square() / k
    j = int((spread >= spread.max() - grouped.DEGENERATE * square[n]).nonzero()[0])
    kept = torch.zeros_like(where)
    kept[rows[order[:j]]] = True
    kept[rows[order[n - k + j :]]] = True
    out = torch.zeros_like(where)
    if j:
        out |= x <= x[rows[order[j - 1]]]
    if j < k:
        out |= x >= x[rows[order[n - k + j]]]
    return kept | (~where & out)
