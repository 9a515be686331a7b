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
        self.own = ids if low >= 0 else torch.where(ids < 0, self.n, ids)
        all_enter = where is None or bool(where.all())
        self.into = self.own if all_enter else torch.where(where, self.own, self.n)  # type: ignore[arg-type]  # not None
        self.is_extreme = False  # a sum or a square has left the range of float64

    def column(self, x: Tensor) -> Tensor:
        if x.shape != self.own.shape or x.dim() != 1:
            shapes = f"{tuple(x.shape)} and ids {tuple(self.own.shape)}"
            raise ValueError(f"values {shapes} must be one column each, of one length")
        return x.to(torch.float64)

    @property
    def enters(self) -> Tensor:
        """[n] bool: in a group, and counting."""
        return self.into < self.n

    def give(self, table: Tensor) -> Tensor:
        """Look up each member's group in the table."""
        return table.index_select(0, self.own)

    def total(self, x: Tensor) -> Tensor:
        table = torch.zeros(self.n + 1, dtype=torch.float64).scatter_add_(0, self.into, x)
        table[self.n] = 0.0
        return table

    @cached_property
    def count(self) -> Tensor:
        table = torch.bincount(self.into, minlength=self.n + 1).to(torch.float64)
        table[self.n] = 0.0
        return table

    def bounded(self, table: Tensor) -> Tensor:
        """The table; `is_extreme` is set where it is not finite."""
        self.is_extreme |= not math.isfinite(table.sum().item())
        return table

    def mean(self, x: Tensor) -> Tensor:
        return self.bounded(self.total(x)) / self.count.clamp_min(1)

    def extreme(self, x: Tensor, how: str) -> Tensor:
        start = float("inf") if how == "amin" else -float("inf")
        table = torch.full((self.n + 1,), start, dtype=torch.float64).scatter_reduce_(0, self.into, x, how)
        return torch.where(self.count > 0, table, 0.0)

    def degenerate(self, x: Tensor) -> Tensor:
        """Table of bool."""
        high, low = self.extreme(x, "amax"), self.extreme(x, "amin")
        return high - low <= DEGENERATE * torch.maximum(high.abs(), low.abs())

    def std(self, x: Tensor, centred: Tensor, ddof: int) -> Tensor:
        """Standard deviation by group; `centred`: x less its group's mean."""
        freedom = self.count - ddof
        variance = self.total(centred.square()) / freedom.clamp_min(1)
        differ = (freedom > 0) & ~self.degenerate(x)
        low, high = (bound.item() for bound in torch.where(differ, variance, 1.0).aminmax())
        self.is_extreme |= not (low >= LEAST_VARIANCE and high < math.inf)
        return torch.where(differ, variance.sqrt(), 0.0)

    def leave_one_out(self, x: Tensor) -> Tensor:
        """[n] leave-one-out mean of each member."""
        enters = self.enters
        contribution = torch.where(enters, x, 0.0)
        others = self.give(self.count) - enters.to(torch.float64)
        return torch.where(
            others > 0, (self.give(self.bounded(self.total(x))) - contribution) / others.clamp_min(1), 0.0
        )

    def exponents(self, x: Tensor) -> Tensor:
        """[n] float64: powers of two by which each member's group is to be divided; 0 where it is in range."""
        size = torch.where(x.isfinite(), x.abs(), 0.0)
        table = torch.zeros(self.n + 1, dtype=torch.float64).scatter_reduce_(0, self.own, size, "amax")
        table[self.n] = 0.0
        power = torch.frexp(table).exponent.to(torch.float64)
        low, high = _PLAIN_EXPONENTS
        plain = (table == 0) | ((power >= low) & (power <= high))
        return self.give(torch.where(plain, 0.0, power.clamp(-1000, 1000)))

    def ordered(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Counting members sorted by (group, value): their values, where each group begins, group sizes, the order."""
        by_value, rows = np.argsort(x.detach().numpy()), np.arange(len(x))
        keys = np.sort(self.into.numpy()[by_value] * len(x) + rows)  # plain sorts are many times as fast as stable ones
        sizes = self.count.long()
        order = torch.from_numpy(by_value[keys[: int(sizes.sum())] % len(x)]) if len(x) else torch.from_numpy(rows)
        return x[order], sizes.cumsum(0) - sizes, sizes, order

    def quantile(self, x: Tensor, q: float, interpolation: str) -> Tensor:
        values, begins, sizes, _ = self.ordered(x)
        if not values.numel():
            return torch.zeros(self.n + 1, dtype=torch.float64)
        position = q * (sizes - 1).clamp_min(0).to(torch.float64)
        if interpolation == "inverted_cdf":  # the margin: 0.1 * 30 is above 3
            position = ((q * sizes - 1e-9).ceil() - 1).clamp_min(0).to(torch.float64)
        low, high = position.floor().long(), position.ceil().long()
        last = values.numel() - 1
        below, above = values[(begins + low).clamp_max(last)], values[(begins + high).clamp_max(last)]
        zero = torch.zeros_like(position)
        nearest = position.round() - low  # of two as near the one of even place
        part = {
            "linear": position - low,
            "lower": zero,
            "higher": zero + 1,
            "nearest": nearest,
            "inverted_cdf": zero,
        }
        if interpolation not in part:
            raise ValueError(f"interpolation is one of {list(part)}, not {interpolation!r}")
        return self.bounded(torch.where(sizes > 0, below + part[interpolation] * (above - below), 0.0))
