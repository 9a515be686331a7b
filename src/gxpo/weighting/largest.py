"""Top-k mask within units."""

from __future__ import annotations

import torch
from torch import Tensor

from gxpo import levels
from gxpo.trees import begins_of


def largest(score: Tensor, unit: Tensor, quota: Tensor, where: Tensor) -> Tensor:
    """Top `quota` members by score in each unit, [n] bool; ties (to 1e-12) go to the earlier member.

    score  [n];   unit  [n] int64, -1 = in none, and not kept
    quota  [n] the same for all of a unit
    where  [n] bool, which compete; the others are kept where they come up to the least that is kept of their unit

    >>> one = torch.zeros(4, dtype=torch.int64)
    >>> largest(torch.tensor([1.0, 3.0, 3.0, 2.0]), one, one + 2, one == 0).tolist()
    [False, True, True, False]
    """
    score = levels.settled(score, unit)
    rows = (where & (unit >= 0)).nonzero().squeeze(1)
    order = rows[torch.argsort(score[rows], descending=True, stable=True)]
    order = order[torch.argsort(unit[order], stable=True)]
    own = unit[order]
    begins = begins_of(own, int(own.max()) + 1 if len(own) else 0)
    kept = torch.zeros(score.shape, dtype=torch.bool)
    kept[order] = torch.arange(len(order)) - begins[own] < quota[order]
    least = levels.min(score, unit, kept)
    return kept | (~where & (levels.count(unit, kept) > 0) & (score >= least))
