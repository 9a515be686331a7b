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

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gxpo.forest.group_tables import DEGENERATE, Groups

# What two float32 forward passes over the same tokens may differ by: nats of a log-prob or entropy, else relative.
FORWARD = 1e-5

CENTERS = ("mean", "leave_one_out", "median", "lower_median", "quantile", "none")  # of `normalize`
SCALES = ("std", "leave_one_out_std", "mean_absolute", "median_absolute", "mean", "none")


def _rescaled(x: Tensor, groups: Groups, statistic: Callable[[Tensor], Tensor]) -> Tensor:
    """[n] a statistic that is in the unit of `x`, of groups divided by powers of two."""
    power = groups.exponents(x)
    return statistic(x * torch.exp2(-power)) * torch.exp2(power)


def count(ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Number of members of the group that count (`where`)."""
    groups = Groups(ids, where)
    return groups.give(groups.count)


def sum(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Grouped sum."""
    groups = Groups(ids, where)
    return groups.give(groups.total(groups.column(x)))


def mean(x: Tensor, ids: Tensor, where: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """Grouped mean; with `weight` [n] >= 0, sum(w x) / sum(w)."""
    groups = Groups(ids, where)
    x = groups.column(x)

    def statistic(x: Tensor) -> Tensor:
        if weight is None:
            return groups.give(groups.mean(x))
        w = weight.to(torch.float64)
        top, bottom = groups.bounded(groups.total(w * x)), groups.total(w)
        return groups.give(top / torch.where(bottom == 0, 1.0, bottom))

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
        middle = groups.give(groups.mean(x))
        return middle, groups.give(groups.std(x, x - middle, ddof))

    out = statistics(x)
    if groups.is_extreme:
        out = _rescaled(x, groups, lambda x: statistics(x)[0]), _rescaled(x, groups, lambda x: statistics(x)[1])
    return out


def min(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Grouped minimum."""
    groups = Groups(ids, where)
    return groups.give(groups.extreme(groups.column(x), "amin"))


def max(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Grouped maximum."""
    groups = Groups(ids, where)
    return groups.give(groups.extreme(groups.column(x), "amax"))


def degenerate(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """[n] bool: the group's counting members are equal (max - min <= 1e-12 of the largest magnitude), in float64."""
    groups = Groups(ids, where)
    return groups.give(groups.degenerate(groups.column(x)))


def quantile(x: Tensor, ids: Tensor, q: float, where: Tensor | None = None, interpolation: str = "linear") -> Tensor:
    """Grouped `q`-quantile; `interpolation` is "linear", "lower", "higher", "nearest" or "inverted_cdf" (as in numpy).

    "inverted_cdf" is the smallest value that at least a share `q` of the members do not exceed.
    """
    groups = Groups(ids, where)
    x = groups.column(x)

    def statistic(x: Tensor) -> Tensor:
        return groups.give(groups.quantile(x, q, interpolation))

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
    values, _, _, kept = groups.ordered(out)
    new = _begins(values, ids[kept], relative, absolute)
    out[kept] = values[new][new.cumsum(0) - 1]
    return out


def _begins(values: Tensor, group: Tensor, relative: float = DEGENERATE, absolute: float = 0.0) -> Tensor:
    """[m] bool, of values sorted by (group, value): where a run of equal values begins."""
    new = torch.ones(len(values), dtype=torch.bool)
    gap = relative * torch.maximum(values[1:].abs(), values[:-1].abs())
    new[1:] = (group[1:] != group[:-1]) | (values.diff() > gap.clamp_min(absolute))
    return new


def reaches(x: Tensor, bound: float) -> Tensor:
    """x >= bound up to rounding (1e-6: rewards may have been float32): 0.7 + 0.2 + 0.1 reaches 1, nan does not."""
    return x >= bound - 1e-6 * abs(bound)


def rank(x: Tensor, ids: Tensor, where: Tensor | None = None, ties: str = "average") -> Tensor:
    """Rank within the group from 0 (smallest) among counting members; 0 for members that don't count or have id -1.

    `ties`: "average" (equal values share their mean rank) or "min" (they share the lowest).
    """
    groups = Groups(ids, where)
    values, begins, _, kept = groups.ordered(groups.column(x))
    out = torch.zeros(ids.shape, dtype=torch.float64)
    if not kept.numel():
        return out
    group = ids[kept]
    place = torch.arange(kept.numel()) - begins[group]
    run = _begins(values, group).cumsum(0) - 1
    if ties == "min":
        out[kept] = min(place.to(torch.float64), run)
    elif ties == "average":
        out[kept] = mean(place.to(torch.float64), run)
    else:
        raise ValueError(f"ties is 'average' or 'min', not {ties!r}")
    return out


def softmax(x: Tensor, ids: Tensor, where: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """Softmax within the group: exp(x / temperature) over its sum; 0 for members that don't count."""
    groups = Groups(ids, where)
    x = groups.column(x)
    scaled = x / temperature
    highest = groups.bounded(groups.extreme(scaled, "amax"))
    below = scaled - groups.give(highest)
    if groups.is_extreme:  # a value over the temperature is not finite, the difference of two may be
        below = (x - groups.give(groups.extreme(x, "amax" if temperature > 0 else "amin"))) / temperature
    raised = torch.where(groups.enters, below.exp(), 0.0)
    total = groups.total(raised)
    return raised / groups.give(torch.where(total == 0, 1.0, total))


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
        power = groups.exponents(x)
        for p in power[power != 0].unique().tolist():  # few: of groups near the ends of float64
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
    """`normalize` of a column; `unit`: what its values, `eps` and `shift` were divided by."""
    by_std = scale in ("std", "leave_one_out_std")
    from_mean = x - groups.give(groups.mean(x)) if center == "mean" or by_std else x
    centred = {
        "mean": lambda: from_mean,
        "leave_one_out": lambda: x - groups.leave_one_out(x),
        "median": lambda: x - groups.give(groups.quantile(x, 0.5, "linear")),
        "lower_median": lambda: x - groups.give(groups.quantile(x, 0.5, "lower")),
        "quantile": lambda: x - groups.give(groups.quantile(x, q, "inverted_cdf")),
        "none": lambda: x,
    }[center]()
    moved = centred - shift if shift else centred
    if scale == "std":
        spread = groups.std(x, from_mean, ddof)  # 0 where too few count or they are equal
        return torch.where(groups.give(spread > 0), moved / groups.give(spread + eps), 0.0)
    if scale == "leave_one_out_std":
        others = _std_of_others(groups, ids, x, from_mean, ddof)
        scaled = torch.where(others > 0, moved / (others + eps), moved if unit == 1 else moved * unit)
        return torch.where(groups.give(groups.std(x, from_mean, ddof) > 0), scaled, 0.0)
    if scale in ("mean_absolute", "median_absolute"):
        size = centred.abs()
        if scale == "mean_absolute":
            divisor = groups.bounded(groups.total(size) + eps) / groups.count.clamp_min(1)
        else:
            divisor = groups.quantile(size, 0.5, "lower" if center == "lower_median" else "linear") + eps
        return torch.where(groups.give(groups.degenerate(x)), 0.0, moved / groups.give(divisor))
    counts = groups.give(groups.count > 0)
    if center != "none":
        equal = groups.enters & groups.give(groups.degenerate(x))
        counts &= ~(equal & groups.give(groups.count == 1)) if shift else ~equal
        moved = torch.where(equal, -shift, moved) if shift else moved
    if scale == "mean":
        mean = groups.mean(x)
        counts &= groups.give(mean > 0)
        moved = moved / groups.give(torch.where(mean > 0, mean + eps, 1.0))
    elif unit != 1:
        moved = moved * unit
    return torch.where(counts, moved, 0.0)


def _std_of_others(groups: Groups, ids: Tensor, x: Tensor, from_mean: Tensor, ddof: int) -> Tensor:
    """[n] std of the group's other counting members (of all of them, for one that does not count); 0 where they are
    equal or too few.

    What is left of the group's squares without a member's own is exact enough as long as others lie as far out as it
    does. Of the lowest and the highest member that isn't known, and theirs are taken over the others anew.
    """
    enters, n = groups.enters, groups.give(groups.count)
    own = torch.where(enters, from_mean.square() * n / (n - 1).clamp_min(1), 0.0)
    left = (groups.give(groups.total(from_mean.square())) - own).clamp_min(0)
    freedom = n - enters.to(torch.float64) - ddof
    out = torch.where(freedom > 0, (left / freedom.clamp_min(1)).sqrt(), 0.0)
    _, begins, sizes, kept = groups.ordered(x)
    some = sizes > 0
    for extreme in (begins[some], (begins + sizes - 1)[some]):
        rows = kept[extreme]
        others = Groups(ids, enters.index_fill(0, rows, False))
        spread = others.std(x, x - others.give(others.mean(x)), ddof)
        out[rows] = others.give(spread)[rows]
    return out


# ---------------------------------------------------------------- ids, and runs of rows by owner
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
    second = torch.cat([keys[1], wanted[1]])
    width = int(second.max()) + 2 if len(second) else 2
    both = torch.cat([keys[0], wanted[0]]) * width + second + 1
    place, asked = dense(both).split([len(x), len(wanted[0])])
    n = len(both)
    total = torch.zeros(n, dtype=torch.float64).scatter_add_(0, place, x.to(torch.float64))
    return (total / torch.bincount(place, minlength=n))[asked]
