"""Positions of m-RoPE (Qwen2-VL, arXiv 2409.12191, section 2.1): a frame, a row and a column for each token.

A text token at position p has the triple (p, p, p). The rows of a picture of `rows` x `columns` that begins at p lie at
(p + frame, p + row, p + column), and the text goes on at p + max(rows, columns), which is less than p plus the number
of its tokens. So every token moves on what comes after it by a number of its own, and positions are sums of these along
a path, plus an offset that the token knows by itself: a prefix has the same positions in whatever goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gxpo.base import media

Grid = tuple[int, int, int]  # frames, rows and columns of a picture, as the language model reads it


def steps(ids: Tensor, grid_of: Callable[[int], Grid]) -> tuple[Tensor, Tensor]:
    """[n], [3, n]: by how much each of `ids` [n] moves on what comes after it, and what is added to where it stands.

    grid_of  grid of the picture with a key (`gxpo.base.media.key_of_row`)
    """
    advance, offset = torch.ones_like(ids), ids.new_zeros(3, ids.numel())
    picture_index = (ids >= media.FIRST).nonzero().squeeze(1)
    if not picture_index.numel():
        return advance, offset
    picture_row = ids[picture_index] - media.FIRST
    keys, which = torch.unique(picture_row // media.ROWS, return_inverse=True)
    row = picture_row % media.ROWS
    _, high, wide = torch.tensor([grid_of(key) for key in keys.tolist()], device=ids.device)[which].unbind(1)
    longest = torch.maximum(high, wide)
    is_first_row = row == 0
    advance[picture_index] = torch.where(is_first_row, longest, 0)
    position = torch.stack([row // (high * wide), row // wide % high, row % wide])
    offset[:, picture_index] = position - torch.where(is_first_row, 0, longest)  # the picture's first row has moved on the others
    return advance, offset


def positions_along(advance: Tensor, offset: Tensor) -> Tensor:
    """[3, n] positions of a list of tokens from its `steps`; the next token's is advance.sum()."""
    return advance.cumsum(0) - advance + offset


def positions_in_tree(advance: Tensor, offset: Tensor, first_token: Tensor, parent: Tensor, node: Tensor) -> Tensor:
    """[3, T] positions of the tokens of a forest, each along its root's path.

    first_token [N + 1], parent [N] (-1: a root), of nodes that come after their parents; node [T]: of each token
    """
    cumulative = torch.cat([advance.new_zeros(1), advance.cumsum(0)])
    advance_N = (cumulative[first_token[1:]] - cumulative[first_token[:-1]]).tolist()
    start: list[int] = []
    for above in parent.tolist():
        start.append(0 if above < 0 else start[above] + advance_N[above])
    begin = torch.tensor(start, dtype=advance.dtype, device=advance.device) - cumulative[first_token[:-1]]
    return cumulative[:-1] + begin[node] + offset
