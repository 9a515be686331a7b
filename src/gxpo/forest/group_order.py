"""Order within groups: the members sorted by group and value, and quantiles of them, as tables by group."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

DEGENERATE = 1e-12  # max - min, relative to the largest magnitude, at or below which members are equal


def ordered(x: Tensor, row: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort the counting members by (group, value): values, first position of each group, group sizes, row order.

    row    [n] table row of each member; of those that don't count the last one
    count  table of the number of counting members
    """
    value_order, rows = np.argsort(x.detach().numpy()), np.arange(len(x))
    # (group, rank of the value) as one number: a plain sort is many times as fast as a stable one
    keys = np.sort(row.numpy()[value_order] * len(x) + rows)
    sizes = count.long()
    order = torch.from_numpy(value_order[keys[: int(sizes.sum())] % len(x)]) if len(x) else torch.from_numpy(rows)
    return x[order], sizes.cumsum(0) - sizes, sizes, order


def first_of_runs(values: Tensor, group: Tensor, relative: float = DEGENERATE, absolute: float = 0.0) -> Tensor:
    """First members of runs of equal values, [m] bool, of values sorted by (group, value)."""
    begins_run = torch.ones(len(values), dtype=torch.bool)
    gap = relative * torch.maximum(values[1:].abs(), values[:-1].abs())
    begins_run[1:] = (group[1:] != group[:-1]) | (values.diff() > gap.clamp_min(absolute))
    return begins_run


def quantile_table(x: Tensor, row: Tensor, count: Tensor, q: float, interpolation: str) -> Tensor:
    """Table of `q`-quantiles, 0 where nothing counts; arguments as of `ordered`."""
    values, begins, sizes, _ = ordered(x, row, count)
    if not values.numel():
        return torch.zeros(len(count), dtype=torch.float64)
    position = q * (sizes - 1).clamp_min(0).to(torch.float64)
    if interpolation == "inverted_cdf":
        # with a margin: in floating point 0.1 * 30 is above 3, and its ceiling 4
        position = ((q * sizes - 1e-9).ceil() - 1).clamp_min(0).to(torch.float64)
    lower_index, upper_index = position.floor().long(), position.ceil().long()
    last_index = values.numel() - 1
    below, above = (
        values[(begins + lower_index).clamp_max(last_index)],
        values[(begins + upper_index).clamp_max(last_index)],
    )
    zero = torch.zeros_like(position)
    nearest = position.round() - lower_index  # of two as near, the one at the even position
    fraction = {
        "linear": position - lower_index,
        "lower": zero,
        "higher": zero + 1,
        "nearest": nearest,
        "inverted_cdf": zero,
    }
    if interpolation not in fraction:
        raise ValueError(f"interpolation is one of {list(fraction)}, not {interpolation!r}")
    return torch.where(sizes > 0, below + fraction[interpolation] * (above - below), 0.0)
