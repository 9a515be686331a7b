"""Columns that point at rows of their own axis (parents, predecessors), and runs of rows that have one owner."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NAN = float("nan")


def sum_before(previous: Tensor, x: Tensor) -> Tensor:
    """Sum of `x` over all rows that each row leads to along `previous` (-1: none); by doubling, O(n log depth)."""
    total = torch.where(previous >= 0, x[previous.clamp_min(0)], 0)
    jump = previous
    while bool((jump >= 0).any()):
        safe = jump.clamp_min(0)
        total = total + torch.where(jump >= 0, total[safe], 0)
        jump = torch.where(jump >= 0, jump[safe], -1)
    return total


def hops(previous: Tensor) -> Tensor:
    """How many steps along `previous` lead from each row to one without."""
    return sum_before(previous, torch.ones_like(previous))


def last_before(previous: Tensor, going: Tensor) -> Tensor:
    """Where each row ends up that follows `previous` as long as it stands on a `going` row that has one."""
    at = torch.where(going & (previous >= 0), previous, torch.arange(len(previous)))
    while not torch.equal(at, further := at[at]):
        at = further
    return at


def by_depth(previous: Tensor) -> list[Tensor]:
    """Rows without a predecessor, then those one hop away, and so on."""
    depth = hops(previous)
    order = torch.argsort(depth, stable=True)
    return list(order.split(torch.bincount(depth).tolist())) if len(depth) else []


def with_ancestors(parent: Tensor, owner: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
    """The (owner, node) pairs and those of all ancestors of the nodes: each once, by owner, then node."""
    n, depth = max(len(parent), 1), hops(parent)
    keys = torch.unique(owner * n + node)
    at = depth[keys % n] if len(parent) else keys
    order = torch.argsort(at, descending=True, stable=True)
    found, above = [keys[:0]], keys[:0]
    for level in keys[order].split(torch.bincount(at).flip(0).tolist()) if len(keys) else ():
        found.append(torch.unique(torch.cat([level, above])))
        up = parent[found[-1] % n]
        above = (found[-1] // n * n + up)[up >= 0]
    pairs = torch.cat(found).sort().values
    return pairs // n, pairs % n


def blank_value(dtype: torch.dtype) -> float:
    """What stands in a named tensor where nothing was given: nan, -1, or 0 in types that have neither."""
    if dtype.is_floating_point:
        return NAN
    return -1 if dtype.is_signed else 0


def begins_of(owner: Tensor, n: int) -> Tensor:
    """[n + 1]: where the elements of each owner begin; `owner` is sorted."""
    counts = torch.bincount(owner, minlength=n)
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])


def runs_of(begins: Tensor, rows: Tensor) -> Tensor:
    """Indices of the elements of each of `rows`, row after row, from where each row's elements begin."""
    sizes = begins.diff()[rows]
    within = torch.arange(int(sizes.sum())) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    return torch.repeat_interleave(begins[rows], sizes) + within


def mean_at(keys: tuple[Tensor, Tensor], x: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
    """Mean of `x` over the rows that have each wanted pair of keys (>= 0), float64; nan where none has it."""
    width = max((int(k[1].max()) for k in (keys, wanted) if len(k[1])), default=0) + 2
    found, inverse = torch.unique(keys[0] * width + keys[1] + 1, return_inverse=True)
    total = torch.zeros(len(found), dtype=torch.float64).index_add_(0, inverse, x.to(torch.float64))
    mean = torch.cat([total / torch.bincount(inverse, minlength=len(found)), torch.tensor([NAN], dtype=torch.float64)])
    asked = wanted[0] * width + wanted[1] + 1
    place = torch.searchsorted(found, asked)
    hit = torch.cat([found, torch.tensor([-1])])[place] == asked
    return torch.where(hit, mean[place], NAN)


def scatter_blocks(blocks: Sequence[tuple[int, Tensor]], rows: int) -> Tensor:
    """One tensor of `rows` rows from (first row, block)s whose trailing sizes may differ; blank where nothing is."""
    widest = [max(sizes) for sizes in zip(*(block.shape[1:] for _, block in blocks), strict=True)]
    dtype = blocks[0][1].dtype
    out = torch.full((rows, *widest), blank_value(dtype), dtype=dtype)
    for at, block in blocks:
        out[(slice(at, at + block.shape[0]), *(slice(0, n) for n in block.shape[1:]))] = block
    return out
