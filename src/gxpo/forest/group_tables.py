"""Tables by group: the intermediate results that grouped statistics share, and how far they are within float64."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

DEGENERATE = 1e-12  # max - min, relative to the largest magnitude, at or below which members are equal
LEAST_VARIANCE = 2.0**-960  # below this, squares of what members differ by have lost digits, or are 0
_PLAIN_EXPONENTS = (-400, 480)  # largest magnitudes of a group, as powers of two, whose squares and sums are in range


class Groups:
    """Shared intermediate results of all statistics of one pair of columns.

    Tables have a row for every group and one more, which is always 0: members of no group read from it, and members
    that do not enter are added to it before it is cleared. So nothing is cut out of the columns.
    """

    def __init__(self, ids: Tensor, where: Tensor | None) -> None:
        if where is not None and (where.shape != ids.shape or where.dtype != torch.bool):
            raise ValueError(f"where must be bool of shape {tuple(ids.shape)}, not {where.dtype} {tuple(where.shape)}")
        low, high = (int(x) for x in ids.aminmax()) if ids.numel() else (0, -1)
        self.n = high + 1 if high >= 0 else 0
        self.group_row = ids if low >= 0 else torch.where(ids < 0, self.n, ids)
        all_enter = where is None or bool(where.all())
        self.target_row = self.group_row if all_enter else torch.where(where, self.group_row, self.n)  # type: ignore[arg-type]  # not None
        self.is_extreme = False  # set once a sum or a square has left the range of float64

    def column(self, x: Tensor) -> Tensor:
        """Values as float64, checked to be one column as long as the ids."""
        if x.shape != self.group_row.shape or x.dim() != 1:
            shapes = f"{tuple(x.shape)} and ids {tuple(self.group_row.shape)}"
            raise ValueError(f"values {shapes} must be one column each, of one length")
        return x.to(torch.float64)

    @property
    def enters(self) -> Tensor:
        """Members that enter the statistics, [n] bool: in a group, and counting."""
        return self.target_row < self.n

    def lookup(self, table: Tensor) -> Tensor:
        """Look up each member's group in the table."""
        return table.index_select(0, self.group_row)

    def total(self, x: Tensor) -> Tensor:
        """Table of sums."""
        table = torch.zeros(self.n + 1, dtype=torch.float64).scatter_add_(0, self.target_row, x)
        table[self.n] = 0.0
        return table

    @cached_property
    def count(self) -> Tensor:
        """Table of the number of counting members, float64."""
        table = torch.bincount(self.target_row, minlength=self.n + 1).to(torch.float64)
        table[self.n] = 0.0
        return table

    def bounded(self, table: Tensor) -> Tensor:
        """Return the table, and set `is_extreme` if it is not finite."""
        self.is_extreme |= not math.isfinite(table.sum().item())
        return table

    def mean(self, x: Tensor) -> Tensor:
        """Table of means, 0 where nothing counts."""
        return self.bounded(self.total(x)) / self.count.clamp_min(1)

    def extreme(self, x: Tensor, how: str) -> Tensor:
        """Table of minima ("amin") or maxima ("amax"), 0 where nothing counts."""
        start = float("inf") if how == "amin" else -float("inf")
        table = torch.full((self.n + 1,), start, dtype=torch.float64).scatter_reduce_(0, self.target_row, x, how)
        return torch.where(self.count > 0, table, 0.0)

    def degenerate(self, x: Tensor) -> Tensor:
        """Table of bool: the counting members are equal, to `DEGENERATE`."""
        high, low = self.extreme(x, "amax"), self.extreme(x, "amin")
        return high - low <= DEGENERATE * torch.maximum(high.abs(), low.abs())

    def std(self, x: Tensor, centred: Tensor, ddof: int) -> Tensor:
        """Standard deviation by group; `centred`: x less its group's mean."""
        freedom = self.count - ddof
        # where members differ, a variance that is tiny or infinite has lost its digits: the caller rescales
        variance = self.total(centred.square()) / freedom.clamp_min(1)
        has_spread = (freedom > 0) & ~self.degenerate(x)
        low, high = (bound.item() for bound in torch.where(has_spread, variance, 1.0).aminmax())
        self.is_extreme |= not (low >= LEAST_VARIANCE and high < math.inf)
        return torch.where(has_spread, variance.sqrt(), 0.0)

    def leave_one_out(self, x: Tensor) -> Tensor:
        """Leave-one-out mean of each member, [n]: the mean of the group's other counting members."""
        enters = self.enters
        contribution = torch.where(enters, x, 0.0)
        n_others = self.lookup(self.count) - enters.to(torch.float64)
        return torch.where(
            n_others > 0, (self.lookup(self.bounded(self.total(x))) - contribution) / n_others.clamp_min(1), 0.0
        )

    def exponents(self, x: Tensor) -> Tensor:
        """Powers of two by which each member's group is to be divided, [n] float64; 0 where it is in range."""
        size = torch.where(x.isfinite(), x.abs(), 0.0)
        table = torch.zeros(self.n + 1, dtype=torch.float64).scatter_reduce_(0, self.group_row, size, "amax")
        table[self.n] = 0.0
        power = torch.frexp(table).exponent.to(torch.float64)
        low, high = _PLAIN_EXPONENTS
        plain = (table == 0) | ((power >= low) & (power <= high))
        return self.lookup(torch.where(plain, 0.0, power.clamp(-1000, 1000)))

    def ordered(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sort the counting members by (group, value): values, first position of each group, group sizes, row order."""
        value_order, rows = np.argsort(x.detach().numpy()), np.arange(len(x))
        # (group, rank of the value) as one number: a plain sort is many times as fast as a stable one
        keys = np.sort(self.target_row.numpy()[value_order] * len(x) + rows)
        sizes = self.count.long()
        order = torch.from_numpy(value_order[keys[: int(sizes.sum())] % len(x)]) if len(x) else torch.from_numpy(rows)
        return x[order], sizes.cumsum(0) - sizes, sizes, order

    def quantile(self, x: Tensor, q: float, interpolation: str) -> Tensor:
        """Table of `q`-quantiles, 0 where nothing counts."""
        values, begins, sizes, _ = self.ordered(x)
        if not values.numel():
            return torch.zeros(self.n + 1, dtype=torch.float64)
        position = q * (sizes - 1).clamp_min(0).to(torch.float64)
        if interpolation == "inverted_cdf":
            # with a margin: in floating point 0.1 * 30 is above 3, and its ceiling 4
            position = ((q * sizes - 1e-9).ceil() - 1).clamp_min(0).to(torch.float64)
        low, high = position.floor().long(), position.ceil().long()
        last = values.numel() - 1
        below, above = values[(begins + low).clamp_max(last)], values[(begins + high).clamp_max(last)]
        zero = torch.zeros_like(position)
        nearest = position.round() - low  # of two as near, the one at the even position
        fraction = {
            "linear": position - low,
            "lower": zero,
            "higher": zero + 1,
            "nearest": nearest,
            "inverted_cdf": zero,
        }
        if interpolation not in fraction:
            raise ValueError(f"interpolation is one of {list(fraction)}, not {interpolation!r}")
        return self.bounded(torch.where(sizes > 0, below + fraction[interpolation] * (above - below), 0.0))
