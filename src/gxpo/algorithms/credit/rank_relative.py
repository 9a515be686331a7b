"""Group-relative advantages of a list's items, rank by rank (Rank-GRPO)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.forest import grouped
from gxpo.forest.reshape import pieces_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


def rank_returns(hit: Tensor, decay: str = "none") -> Tensor:
    """Return of each rank of a list, [R, K]: its own hit, or with `decay` "log" all discounted hits from it on.

    hit  [R, K];   the discount of rank k, from 0, is 1 / log2(k + 2)

    >>> rank_returns(torch.tensor([[1.0, 0, 1, 0]]), "log").tolist()
    [[1.5, 0.5, 0.5, 0.0]]
    """
    if decay == "none":
        return hit
    gain = hit / torch.log2(torch.arange(hit.shape[1], dtype=hit.dtype) + 2)
    return gain.flip(1).cumsum(1).flip(1)


@part("rank_relative", stage="credit", axis="P", learns_from_equal_groups=True)
def rank_relative(
    item_hit: Tensor,
    forest: Forest,
    *,
    items: Annotated[int, Ge(1)] = 20,
    decay: Literal["none", "log"] = "none",
    ddof: Annotated[int, Ge(0)] = 1,
    eps: Annotated[float, Ge(0)] = 1e-4,
) -> Tensor:
    """Rank advantage (Rank-GRPO): each item's `rank_returns` against those of the same rank in the group's lists.

    A = (r_k - mean) / (std + eps), the same for all tokens of an item; [P] float64

    item_hit  [P] of the token's item, nan unknown (counted 0); items are segments, ranked in their order
    items     ranks that count: later ones have advantage 0. A list that ends earlier has 0 at the ranks that it lacks
    decay     "none": an item is paid for its own hit; "log": for all hits from it on, discounted by their rank

    Source: Rank-GRPO, arXiv 2510.20150, and its code (`exp_inf`, `log_decay`).
    """
    rank_P, n = pieces_of(forest).number, forest.n_trajectories
    has_rank_P = rank_P < items
    place_P = forest.path_trajectory * items + rank_P.clamp_max(items - 1)
    # one number for each (list, rank): ranks that a list lacks stay 0, and count in the statistics
    hit = torch.zeros(n * items, dtype=torch.float64)
    hit[place_P[has_rank_P]] = item_hit[has_rank_P].to(torch.float64).nan_to_num(0.0)
    value = rank_returns(hit.view(n, items), decay).flatten()
    # lists are compared within (group, rank)
    group_R = forest.ids("group", axis="R")[:, None]
    ids = torch.where(group_R < 0, -1, group_R * items + torch.arange(items)).flatten()
    advantage = grouped.normalize(value, ids, forest.compared.repeat_interleave(items), ddof=ddof, eps=eps)
    return torch.where(has_rank_P, advantage[place_P], 0.0)
