"""Tree operations on parent pointers (sums towards root or leaves, ancestors), and ragged runs of rows by owner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

NAN = float("nan")


def dense(keys: Tensor) -> Tensor:
    """[n] int64: dense ids of the keys (int64), from 0, in ascending order of keys.

    Linear where the keys are not much more spread than they are many; else one sort.
    """
    if not len(keys):
        return keys
    column = keys.numpy()
    low, high = int(column.min()), int(column.max())
    if high - low < 4 * len(column):
        seen = np.zeros(high - low + 1, dtype=bool)
        seen[column - low] = True
        return torch.from_numpy((seen.cumsum(dtype=np.int64) - 1)[column - low])
    ordered, rows = _in_order(column, low, high)
    place = np.empty(len(column), dtype=np.int64)
    place[rows] = _first_of_run(ordered).cumsum(dtype=np.int64) - 1
    return torch.from_numpy(place)


def distinct(keys: Tensor) -> Tensor:
    """The distinct keys (int64) in ascending order."""
    ordered = np.sort(keys.numpy())
    return torch.from_numpy(ordered[_first_of_run(ordered)])


def place_in(ordered: Tensor, keys: Tensor) -> Tensor:
    """[n] int64: index of each key in the sorted, distinct `ordered`; -1 if it is not there.

    Quickest where the keys nearly ascend, or are repeated from row to row.
    """
    if not len(ordered) or not len(keys):
        return torch.full(keys.shape, -1)
    column = keys.numpy()
    first = _first_of_run(column)
    asked = column[first]
    place = np.searchsorted(ordered.numpy(), asked).clip(max=len(ordered) - 1)
    place = np.where(ordered.numpy()[place] == asked, place, -1)
    return torch.from_numpy(place[first.cumsum(dtype=np.int64) - 1] if len(asked) < len(column) else place)


def _first_of_run(ordered: np.ndarray) -> np.ndarray:
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def _in_order(keys: np.ndarray, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """The keys in ascending order and their rows, equal keys by row.

    A key and its row are sorted as one number where they fit into it: many times as fast as a stable sort of rows.
    """
    bits = len(keys).bit_length()
    if (high - low + 1).bit_length() + bits > 62:
        rows = np.argsort(keys, kind="stable")
        return keys[rows], rows
    both = np.sort((keys - low << bits) + np.arange(len(keys)))
    return (both >> bits) + low, both & ((1 << bits) - 1)


def with_end(previous: Tensor) -> Tensor:
    """`previous` with a final sentinel row that points at itself; rows without a predecessor point at it."""
    end = len(previous)
    return torch.cat([torch.where(previous >= 0, previous, end), previous.new_tensor([end])])


def sum_before(previous: Tensor, x: Tensor) -> Tensor:
    """Sum of `x` over all predecessors of each row along `previous` (-1: none); by doubling, O(n log depth)."""
    jump, end = with_end(previous), len(previous)
    total = torch.cat([x, x.new_zeros(1)])[jump]
    while int(jump.min()) < end:
        total = total + total.index_select(0, jump)
        jump = jump.index_select(0, jump)
    return total[:-1]


def sum_after(previous: Tensor, x: Tensor, discount: float = 1.0) -> Tensor:
    """Discounted sum of `x` [n] float64 over each row and all its successors, times `discount` for each hop.

    By doubling, O(n log depth): after k rounds a row holds what is less than 2^k hops away.
    """
    jump, end = with_end(previous), len(previous)
    total = torch.cat([x, x.new_zeros(1)])
    part, further = torch.empty_like(total), torch.empty_like(jump)
    while discount and int(jump.min()) < end:
        total.scatter_add_(0, jump, torch.mul(total, discount, out=part))
        total[end] = 0.0
        torch.index_select(jump, 0, jump, out=further)
        jump, further = further, jump
        discount *= discount
    return total[:-1]


def last_before(previous: Tensor, going: Tensor) -> Tensor:
    """Last row reached along `previous` while rows are `going`."""
    at = torch.where(going & (previous >= 0), previous, torch.arange(len(previous)))
    while not torch.equal(at, further := at.index_select(0, at)):
        at = further
    return at


def with_ancestors(parent: Tensor, owner: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
    """(owner, node) pairs extended to all ancestors of the nodes: each once, by owner, then node.

    A round goes one node up, from pairs that are new: as many rounds as nodes lie between two given ones of an owner.
    """
    n = max(len(parent), 1)
    given = fresh = distinct(owner * n + node)
    found = [given]
    while len(fresh):
        at = fresh % n
        up = parent[at]
        above = distinct((fresh - at + up)[up >= 0])
        fresh = above[place_in(given, above) < 0]
        found.append(fresh)
    pairs = distinct(torch.cat(found))
    return pairs // n, pairs % n


def blank_value(dtype: torch.dtype) -> float:
    """Fill value of a named tensor: nan, -1, or 0 in types that have neither."""
    if dtype.is_floating_point:
        return NAN
    return -1 if dtype.is_signed else 0


def begins_of(owner: Tensor, n: int) -> Tensor:
    """[n + 1] offsets of each owner's elements; `owner` is sorted."""
    counts = torch.bincount(owner, minlength=n)
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def runs_of(begins: Tensor, rows: Tensor) -> Tensor:
    """Indices of the elements of each of `rows`, concatenated."""
    sizes = begins.diff()[rows]
    shift = repeated(begins[rows] - (sizes.cumsum(0) - sizes), sizes)
    return shift.add_(torch.arange(len(shift)))


def repeated(x: Tensor, times: Tensor) -> Tensor:
    """Each value (int64) repeated `times` times: a faster `torch.repeat_interleave`."""
    return torch.from_numpy(np.repeat(x.numpy(), times.numpy()))


def mean_at(keys: tuple[Tensor, Tensor], x: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
    """Mean of `x` over the rows with each wanted pair of keys (>= -1), float64; nan where there are none."""
    width = max((int(k[1].max()) for k in (keys, wanted) if len(k[1])), default=0) + 2
    both = torch.cat([pair[0] * width + pair[1] + 1 for pair in (keys, wanted)])
    place, asked = dense(both).split([len(x), len(wanted[0])])
    n = len(both)
    total = torch.zeros(n, dtype=torch.float64).scatter_add_(0, place, x.to(torch.float64))
    return (total / torch.bincount(place, minlength=n))[asked]


def scatter_blocks(blocks: Sequence[tuple[int, Tensor]], rows: int) -> Tensor:
    """One tensor of `rows` rows from (first row, block)s whose trailing sizes may differ; blank where nothing is."""
    widest = [max(sizes) for sizes in zip(*(block.shape[1:] for _, block in blocks), strict=True)]
    dtype = blocks[0][1].dtype
    out = torch.full((rows, *widest), blank_value(dtype), dtype=dtype)
    for at, block in blocks:
        out[(slice(at, at + block.shape[0]), *(slice(0, n) for n in block.shape[1:]))] = block
    return out
