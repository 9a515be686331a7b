"""Grouped statistics: mean, std, rank, quantile, leave-one-out... of a column by group id; dense ids, runs by owner.

Every statistic takes `x` [n] and `ids` [n] (dense ids from `Forest.ids`; -1 = in no group) and returns [n] float64: the
statistic of each member's group, broadcast back to the members. `where` [n] bool says which members enter the
statistic; the others are given it all the same (a rollout that is not compared is measured against those that are).
Members of no group, and groups without a single counting member, are given 0. Vectorised; no loop over groups: linear
in the members (with a sort for median, quantile and rank), and sums are taken in the order of the members.

Sums and squares of values near the ends of float64 leave its range although the statistic does not. Where that happens,
it is taken again with each such group multiplied by a power of two; no other group's bits depend on that. A grouped sum
that is too large stays infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gxpo.forest.group_order import DEGENERATE, first_of_runs, ordered, quantile_table

LEAST_VARIANCE = 2.0**-960  # below this, squares of what members differ by have lost digits, or are 0
_PLAIN_EXPONENTS = (-400, 480)  # largest magnitudes of a group, as powers of two, whose squares and sums are in range
FORWARD = 1e-5  # two float32 forward passes over the same tokens may differ by this: nats of a log-prob, else relative

CENTERS = ("mean", "leave_one_out", "median", "lower_median", "quantile", "none")  # of `normalize`
SCALES = ("std", "leave_one_out_std", "mean_absolute", "median_absolute", "mean", "none")


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
        mean_of_others = (self.lookup(self.bounded(self.total(x))) - contribution) / n_others.clamp_min(1)
        return torch.where(n_others > 0, mean_of_others, 0.0)

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
        """Sort the counting members by (group, value): see `group_order.ordered`."""
        return ordered(x, self.target_row, self.count)

    def quantile(self, x: Tensor, q: float, interpolation: str) -> Tensor:
        """Table of `q`-quantiles, 0 where nothing counts."""
        return self.bounded(quantile_table(x, self.target_row, self.count, q, interpolation))


def _rescaled(x: Tensor, groups: Groups, statistic: Callable[[Tensor], Tensor]) -> Tensor:
    """Take a statistic in the unit of `x` with each group near the ends of float64 divided by a power of two, [n]."""
    power = groups.exponents(x)
    return statistic(x * torch.exp2(-power)) * torch.exp2(power)


def count(ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Number of members of the group that count (`where`)."""
    groups = Groups(ids, where)
    return groups.lookup(groups.count)


def sum(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Grouped sum."""
    groups = Groups(ids, where)
    return groups.lookup(groups.total(groups.column(x)))


def mean(x: Tensor, ids: Tensor, where: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """Grouped mean; with `weight` [n] >= 0, sum(w x) / sum(w)."""
    groups = Groups(ids, where)
    x = groups.column(x)

    def statistic(x: Tensor) -> Tensor:
        if weight is None:
            return groups.lookup(groups.mean(x))
        w = weight.to(torch.float64)
        top, bottom = groups.bounded(groups.total(w * x)), groups.total(w)
        return groups.lookup(top / torch.where(bottom == 0, 1.0, bottom))

    out = statistic(x)
    return _rescaled(x, groups, statistic) if groups.is_extreme else out


def std(x: Tensor, ids: Tensor, where: Tensor | None = None, ddof: int = 1) -> Tensor:
    """Grouped standard deviation, two-pass, with `ddof`; 0 where count <= ddof."""
    return mean_and_std(x, ids, where, ddof)[1]


def mean_and_std(x: Tensor, ids: Tensor, where: Tensor | None = None, ddof: int = 1) -> tuple[Tensor, Tensor]:
    """Grouped `mean` and `std` at once, cheaper than both separately."""
    groups = Groups(ids, where)
    x = groups.column(x)

    def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
        middle = groups.lookup(groups.mean(x))
        return middle, groups.lookup(groups.std(x, x - middle, ddof))

    out = statistics(x)
    if groups.is_extreme:
        out = _rescaled(x, groups, lambda x: statistics(x)[0]), _rescaled(x, groups, lambda x: statistics(x)[1])
    return out


def min(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Grouped minimum."""
    groups = Groups(ids, where)
    return groups.lookup(groups.extreme(groups.column(x), "amin"))


def max(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Grouped maximum."""
    groups = Groups(ids, where)
    return groups.lookup(groups.extreme(groups.column(x), "amax"))


def degenerate(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Groups of equal members, [n] bool: max - min <= 1e-12 of the largest magnitude, in float64."""
    groups = Groups(ids, where)
    return groups.lookup(groups.degenerate(groups.column(x)))


def quantile(x: Tensor, ids: Tensor, q: float, where: Tensor | None = None, interpolation: str = "linear") -> Tensor:
    """Grouped `q`-quantile; `interpolation` is "linear", "lower", "higher", "nearest" or "inverted_cdf" (as in numpy).

    "inverted_cdf" is the smallest value that at least a share `q` of the members do not exceed.
    """
    groups = Groups(ids, where)
    x = groups.column(x)

    def statistic(x: Tensor) -> Tensor:
        return groups.lookup(groups.quantile(x, q, interpolation))

    out = statistic(x)
    return _rescaled(x, groups, statistic) if groups.is_extreme else out


def median(x: Tensor, ids: Tensor, where: Tensor | None = None, lower: bool = False) -> Tensor:
    """Grouped median; of an even number the mean of the middle two, or the lower one."""
    return quantile(x, ids, 0.5, where, "lower" if lower else "linear")


def settled(
    x: Tensor, ids: Tensor, where: Tensor | None = None, *, relative: float = DEGENERATE, absolute: float = 0.0
) -> Tensor:
    """Snap values of a group that differ only by rounding to one value, so that ties are ties.

    Of the sorted values of a group, those that follow each other by at most `absolute`, or `relative` times the larger
    magnitude, are a run, and all of a run are given its smallest. The others keep their values. Carries no gradient.

    >>> settled(torch.tensor([0.3, 0.1 + 0.2, 1.0], dtype=torch.float64), torch.zeros(3, dtype=torch.int64)).tolist()
    [0.3, 0.3, 1.0]
    """
    groups = Groups(ids, where)
    out = groups.column(x).detach().clone()
    values, _, _, order = groups.ordered(out)
    begins_run = first_of_runs(values, ids[order], relative, absolute)
    out[order] = values[begins_run][begins_run.cumsum(0) - 1]
    return out


def reaches(x: Tensor, bound: float) -> Tensor:
    """x >= bound up to rounding (1e-6: rewards may have been float32): 0.7 + 0.2 + 0.1 reaches 1, nan does not."""
    return x >= bound - 1e-6 * abs(bound)


def rank(x: Tensor, ids: Tensor, where: Tensor | None = None, ties: str = "average") -> Tensor:
    """Rank within the group from 0 (smallest) among counting members; 0 for members that don't count or have id -1.

    `ties`: "average" (equal values share their mean rank) or "min" (they share the lowest).
    """
    groups = Groups(ids, where)
    values, begins, _, order = groups.ordered(groups.column(x))
    out = torch.zeros(ids.shape, dtype=torch.float64)
    if not order.numel():
        return out
    group = ids[order]
    position = torch.arange(order.numel()) - begins[group]
    # members of a run are equal up to rounding, and share one rank
    run = first_of_runs(values, group).cumsum(0) - 1
    if ties == "min":
        out[order] = min(position.to(torch.float64), run)
    elif ties == "average":
        out[order] = mean(position.to(torch.float64), run)
    else:
        raise ValueError(f"ties is 'average' or 'min', not {ties!r}")
    return out


def softmax(x: Tensor, ids: Tensor, where: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """Softmax within the group: exp(x / temperature) over its sum; 0 for members that don't count."""
    groups = Groups(ids, where)
    x = groups.column(x)
    scaled = x / temperature
    highest = groups.bounded(groups.extreme(scaled, "amax"))
    below = scaled - groups.lookup(highest)
    if groups.is_extreme:
        # a value over the temperature is not finite, but the difference of two may be
        below = (x - groups.lookup(groups.extreme(x, "amax" if temperature > 0 else "amin"))) / temperature
    raised = torch.where(groups.enters, below.exp(), 0.0)
    total = groups.total(raised)
    return raised / groups.lookup(torch.where(total == 0, 1.0, total))


def leave_one_out(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Leave-one-out mean: mean of the group's *other* counting members; 0 where there is none."""
    groups = Groups(ids, where)
    x = groups.column(x)
    out = groups.leave_one_out(x)
    return _rescaled(x, groups, groups.leave_one_out) if groups.is_extreme else out


def normalize(
    x: Tensor,
    ids: Tensor,
    where: Tensor | None = None,
    *,
    center: str = "mean",
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    q: float = 0.5,
    shift: float = 0.0,
) -> Tensor:
    """Group normalisation: (x - center - shift) / (scale + eps) within each group, exactly 0 for degenerate groups.

    center  "mean" | "leave_one_out" | "median" | "lower_median" (of an even number the lower of the middle two)
            | "quantile" (the `q`-quantile, "inverted_cdf") | "none"
    scale   "std"                `ddof`; eps is added to the std
            "leave_one_out_std"  the std of the others; a member whose others are equal, or too few, is not scaled
            "mean_absolute"      mean of |x - center|; eps is added to the sum that it is a mean of
            "median_absolute"    median of |x - center| (the lower one with "lower_median"); eps > 0 is what divides
                                 where it is 0 and members differ
            "mean"               the group's mean, of values >= 0; 0 for all where it is not above 0
            "none"               eps unused
    Exactly 0 for: members of no group; a single counting member measured against itself; a member that is not
    compared and finds fewer counting members than the statistic needs (1, or ddof + 1 with a std); with a spread
    (the first four scales), every member of a group whose compared members are equal, whatever the center (there is no
    spread to measure by, and eps is no substitute for one); and, centred without one, the compared members of such a
    group, unless there is a shift, which they are given then.
    """
    if center not in CENTERS:
        raise ValueError(f"center is one of {list(CENTERS)}, not {center!r}")
    if scale not in SCALES:
        raise ValueError(f"scale is one of {list(SCALES)}, not {scale!r}")
    groups = Groups(ids, where)
    x = groups.column(x)
    out = groups.bounded(_normalized(groups, ids, x, center, scale, ddof, eps, q, shift))
    if groups.is_extreme:
        # again for groups near the ends of float64 alone, each divided by its power of two, eps and shift with it
        power = groups.exponents(x)
        for p in power[power != 0].unique().tolist():
            rows, unit = power == p, 2.0**p
            part = Groups(ids[rows], None if where is None else where[rows])
            how = (center, scale, ddof, eps / unit, q, shift / unit, unit)
            out[rows] = _normalized(part, ids[rows], x[rows] / unit, *how)
    return out


def _normalized(
    groups: Groups,
    ids: Tensor,
    x: Tensor,
    center: str,
    scale: str,
    ddof: int,
    eps: float,
    q: float,
    shift: float,
    unit: float = 1.0,
) -> Tensor:
    """Normalise one float64 column; `unit` is the number by which its values, `eps` and `shift` were divided."""
    # centre; a std is always about the mean, whatever the centre is
    by_std = scale in ("std", "leave_one_out_std")
    from_mean = x - groups.lookup(groups.mean(x)) if center == "mean" or by_std else x
    centred = {
        "mean": lambda: from_mean,
        "leave_one_out": lambda: x - groups.leave_one_out(x),
        "median": lambda: x - groups.lookup(groups.quantile(x, 0.5, "linear")),
        "lower_median": lambda: x - groups.lookup(groups.quantile(x, 0.5, "lower")),
        "quantile": lambda: x - groups.lookup(groups.quantile(x, q, "inverted_cdf")),
        "none": lambda: x,
    }[center]()
    shifted = centred - shift if shift else centred
    # a spread of 0 leaves nothing to measure by: the whole group is 0, also its members that are not compared
    if scale == "std":
        spread = groups.std(x, from_mean, ddof)  # 0 where too few count or they are equal
        return torch.where(groups.lookup(spread > 0), shifted / groups.lookup(spread + eps), 0.0)
    if scale == "leave_one_out_std":
        other_std = _std_of_others(groups, ids, x, from_mean, ddof)
        scaled = torch.where(other_std > 0, shifted / (other_std + eps), shifted if unit == 1 else shifted * unit)
        return torch.where(groups.lookup(groups.std(x, from_mean, ddof) > 0), scaled, 0.0)
    if scale in ("mean_absolute", "median_absolute"):
        deviation = centred.abs()
        if scale == "mean_absolute":
            divisor = groups.bounded(groups.total(deviation) + eps) / groups.count.clamp_min(1)
        else:
            divisor = groups.quantile(deviation, 0.5, "lower" if center == "lower_median" else "linear") + eps
        return torch.where(groups.lookup(groups.degenerate(x)), 0.0, shifted / groups.lookup(divisor))
    # without a spread: equal members are exactly 0 (what is left of them is rounding), others keep their distance
    has_scale = groups.lookup(groups.count > 0)
    if center != "none":
        in_equal_group = groups.enters & groups.lookup(groups.degenerate(x))
        has_scale &= ~(in_equal_group & groups.lookup(groups.count == 1)) if shift else ~in_equal_group
        shifted = torch.where(in_equal_group, -shift, shifted) if shift else shifted
    if scale == "mean":
        mean = groups.mean(x)
        has_scale &= groups.lookup(mean > 0)
        shifted = shifted / groups.lookup(torch.where(mean > 0, mean + eps, 1.0))
    elif unit != 1:
        shifted = shifted * unit
    return torch.where(has_scale, shifted, 0.0)


def _std_of_others(groups: Groups, ids: Tensor, x: Tensor, from_mean: Tensor, ddof: int) -> Tensor:
    """Std of the other counting members, [n] (of all, for one that does not count); 0 where equal or too few."""
    enters, n = groups.enters, groups.lookup(groups.count)
    # the group's squares less the member's own, with the shift that its absence makes in the mean
    own_square = torch.where(enters, from_mean.square() * n / (n - 1).clamp_min(1), 0.0)
    other_squares = (groups.lookup(groups.total(from_mean.square())) - own_square).clamp_min(0)
    freedom = n - enters.to(torch.float64) - ddof
    out = torch.where(freedom > 0, (other_squares / freedom.clamp_min(1)).sqrt(), 0.0)
    # that difference has lost its digits where a member lies far out alone, which only the lowest and the highest can:
    # for these two the std is taken over the others anew
    _, begins, sizes, order = groups.ordered(x)
    is_nonempty = sizes > 0
    for extreme in (begins[is_nonempty], (begins + sizes - 1)[is_nonempty]):
        rows = order[extreme]
        other_members = Groups(ids, enters.index_fill(0, rows, False))
        spread = other_members.std(x, x - other_members.lookup(other_members.mean(x)), ddof)
        out[rows] = other_members.lookup(spread)[rows]
    return out


# ---------------------------------------------------------------- ids, and runs of rows by owner
def dense(keys: Tensor) -> Tensor:
    """Dense ids of int64 keys, from 0, in ascending order of keys: [n] int64.

    Linear where the range of the keys is at most about four times their number; else one sort.
    """
    if not len(keys):
        return keys
    column = keys.numpy()
    low, high = int(column.min()), int(column.max())
    if high - low < 4 * len(column):
        is_used = np.zeros(high - low + 1, dtype=bool)
        is_used[column - low] = True
        return torch.from_numpy((is_used.cumsum(dtype=np.int64) - 1)[column - low])
    ordered, rows = _in_order(column, low, high)
    place = np.empty(len(column), dtype=np.int64)
    place[rows] = _first_of_run(ordered).cumsum(dtype=np.int64) - 1
    return torch.from_numpy(place)


def distinct(keys: Tensor) -> Tensor:
    """The distinct keys (int64) in ascending order."""
    ordered = np.sort(keys.numpy())
    return torch.from_numpy(ordered[_first_of_run(ordered)])


def place_in(ordered: Tensor, keys: Tensor) -> Tensor:
    """Index of each key in the sorted, distinct `ordered`, [n] int64; -1 if it is not there.

    Fastest where the keys nearly ascend, or are repeated from row to row.
    """
    if not len(ordered) or not len(keys):
        return torch.full(keys.shape, -1)
    column = keys.numpy()
    # equal keys in a row are looked up once
    first = _first_of_run(column)
    distinct_keys = column[first]
    position = np.searchsorted(ordered.numpy(), distinct_keys).clip(max=len(ordered) - 1)
    position = np.where(ordered.numpy()[position] == distinct_keys, position, -1)
    return torch.from_numpy(
        position[first.cumsum(dtype=np.int64) - 1] if len(distinct_keys) < len(column) else position
    )


def _first_of_run(ordered: np.ndarray) -> np.ndarray:
    """Rows that differ from the row before, [n] bool."""
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def _in_order(keys: np.ndarray, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Sort keys: in ascending order, with their rows, equal keys by row.

    A key and its row are sorted as one number where they fit into it: many times as fast as a stable sort of rows.
    """
    bits = len(keys).bit_length()
    if (high - low + 1).bit_length() + bits > 62:
        rows = np.argsort(keys, kind="stable")
        return keys[rows], rows
    both = np.sort((keys - low << bits) + np.arange(len(keys)))
    return (both >> bits) + low, both & ((1 << bits) - 1)


def begins_of(owner: Tensor, n: int) -> Tensor:
    """Offsets of each owner's elements, [n + 1]; `owner` is sorted."""
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
