"""The only reductions in gxpo: statistics of a column within the groups of an id column.

Every function takes `x` [n] and `ids` [n] (dense ids from `Forest.ids`; -1 = in no group) and returns [n] float64: the
statistic of each member's group, broadcast back to the members. `where` [n] bool says which members enter the
statistic; the others are given it all the same (a rollout that is not compared is measured against those that are).
Members of no group, and groups without a single counting member, are given 0. Vectorised; no loop over groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

DEGENERATE = 1e-12  # max - min, relative to the largest magnitude, at or below which members are equal


def _enter(x: Tensor, ids: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor, Tensor, int]:
    """float64 values, safe ids, which members enter, number of groups."""
    if x.shape != ids.shape or x.dim() != 1:
        raise ValueError(f"values {tuple(x.shape)} and ids {tuple(ids.shape)} must be one column each, of one length")
    if where is not None and (where.shape != ids.shape or where.dtype != torch.bool):
        raise ValueError(f"where must be bool of shape {tuple(ids.shape)}, not {where.dtype} {tuple(where.shape)}")
    inside = ids >= 0
    enters = inside if where is None else inside & where
    safe = ids.clamp_min(0)
    n = int(safe.max()) + 1 if ids.numel() else 1
    return x.to(torch.float64), safe, enters, n


def _spread(per_group: Tensor, ids: Tensor) -> Tensor:
    """Group values [n_groups] back to the members; 0 outside any group."""
    return torch.where(ids >= 0, per_group[ids.clamp_min(0)], torch.zeros((), dtype=per_group.dtype))


def _totals(x: Tensor, ids: Tensor, enters: Tensor, n: int) -> Tensor:
    return torch.zeros(n, dtype=torch.float64).index_add_(0, ids[enters], x[enters])


def count(ids: Tensor, where: Tensor | None = None) -> Tensor:
    """How many members of the group enter."""
    x, safe, enters, n = _enter(torch.ones(ids.shape, dtype=torch.float64), ids, where)
    return _spread(_totals(x, safe, enters, n), ids)


def sum(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Sum over the group."""
    x, safe, enters, n = _enter(x, ids, where)
    return _spread(_totals(x, safe, enters, n), ids)


def mean(x: Tensor, ids: Tensor, where: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """Mean over the group; with `weight` [n] >= 0, sum(w x) / sum(w)."""
    x, safe, enters, n = _enter(x, ids, where)
    w = torch.ones_like(x) if weight is None else weight.to(torch.float64)
    top, bottom = _totals(w * x, safe, enters, n), _totals(w, safe, enters, n)
    return _spread(top / torch.where(bottom == 0, torch.ones_like(bottom), bottom), ids)


def std(x: Tensor, ids: Tensor, where: Tensor | None = None, ddof: int = 1) -> Tensor:
    """Standard deviation over the group, two-pass, `ddof` degrees of freedom taken off; 0 where count <= ddof."""
    centred = torch.where(ids >= 0, x.to(torch.float64) - mean(x, ids, where), torch.zeros((), dtype=torch.float64))
    freedom = count(ids, where) - ddof
    variance = sum(centred.square(), ids, where) / freedom.clamp_min(1)
    return torch.where((freedom > 0) & ~degenerate(x, ids, where), variance.sqrt(), torch.zeros_like(variance))


def _extreme(x: Tensor, ids: Tensor, where: Tensor | None, how: str) -> Tensor:
    x, safe, enters, n = _enter(x, ids, where)
    start = torch.zeros(n, dtype=torch.float64)
    return _spread(start.scatter_reduce_(0, safe[enters], x[enters], how, include_self=False), ids)


def min(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Smallest value of the group."""
    return _extreme(x, ids, where, "amin")


def max(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Largest value of the group."""
    return _extreme(x, ids, where, "amax")


def degenerate(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """[n] bool: the group's counting members are equal (max - min <= 1e-12 of the largest magnitude), in float64."""
    high, low = max(x, ids, where), min(x, ids, where)
    return high - low <= DEGENERATE * torch.maximum(high.abs(), low.abs())


def _ordered(x: Tensor, ids: Tensor, where: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Counting members sorted by (group, value): their values, where each group begins, group sizes, the order."""
    x, safe, enters, n = _enter(x, ids, where)
    kept = enters.nonzero().squeeze(1)
    kept = kept[torch.argsort(x[kept], stable=True)]
    kept = kept[torch.argsort(safe[kept], stable=True)]
    sizes = torch.bincount(safe[kept], minlength=n)
    return x[kept], sizes.cumsum(0) - sizes, sizes, kept


def quantile(x: Tensor, ids: Tensor, q: float, where: Tensor | None = None, interpolation: str = "linear") -> Tensor:
    """The `q`-quantile of the group; `interpolation` is "linear", "lower" or "higher" (as in numpy)."""
    values, begins, sizes, _ = _ordered(x, ids, where)
    if not values.numel():
        return torch.zeros(ids.shape, dtype=torch.float64)
    position = q * (sizes - 1).clamp_min(0).to(torch.float64)
    low, high = position.floor().long(), position.ceil().long()
    last = values.numel() - 1
    below, above = values[(begins + low).clamp_max(last)], values[(begins + high).clamp_max(last)]
    part = {"linear": position - low, "lower": torch.zeros_like(position), "higher": torch.ones_like(position)}
    if interpolation not in part:
        raise ValueError(f"interpolation is 'linear', 'lower' or 'higher', not {interpolation!r}")
    picked = below + part[interpolation] * (above - below)
    return _spread(torch.where(sizes > 0, picked, torch.zeros_like(picked)), ids)


def median(x: Tensor, ids: Tensor, where: Tensor | None = None, lower: bool = False) -> Tensor:
    """Median of the group; of an even number the mean of the middle two, or the lower one."""
    return quantile(x, ids, 0.5, where, "lower" if lower else "linear")


def rank(x: Tensor, ids: Tensor, where: Tensor | None = None, ties: str = "average") -> Tensor:
    """Rank within the group from 0 (smallest) among counting members; the others and -1 are given 0.

    `ties`: "average" (equal values share their mean rank) or "min" (they share the lowest).
    """
    values, begins, _, kept = _ordered(x, ids, where)
    out = torch.zeros(ids.shape, dtype=torch.float64)
    if not kept.numel():
        return out
    group = ids[kept]
    place = torch.arange(kept.numel()) - begins[group]
    new = torch.ones(kept.numel(), dtype=torch.bool)
    new[1:] = (group[1:] != group[:-1]) | (values[1:] != values[:-1])
    run = new.cumsum(0) - 1
    if ties == "min":
        out[kept] = min(place.to(torch.float64), run)
    elif ties == "average":
        out[kept] = mean(place.to(torch.float64), run)
    else:
        raise ValueError(f"ties is 'average' or 'min', not {ties!r}")
    return out


def softmax(x: Tensor, ids: Tensor, where: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """exp(x / temperature) over the group's sum of it; members that do not enter are given 0."""
    scaled, _, enters, _ = _enter(x.to(torch.float64) / temperature, ids, where)
    raised = torch.where(enters, (scaled - max(scaled, ids, where)).exp(), torch.zeros_like(scaled))
    total = sum(raised, ids, where)
    return raised / torch.where(total == 0, torch.ones_like(total), total)


def leave_one_out(x: Tensor, ids: Tensor, where: Tensor | None = None) -> Tensor:
    """Mean of the group's *other* counting members; 0 where there is none."""
    enters = (ids >= 0) if where is None else (ids >= 0) & where
    own = torch.where(enters, x.to(torch.float64), torch.zeros((), dtype=torch.float64))
    others = count(ids, where) - enters.to(torch.float64)
    return torch.where(others > 0, (sum(x, ids, where) - own) / others.clamp_min(1), torch.zeros_like(own))


def normalize(
    x: Tensor,
    ids: Tensor,
    where: Tensor | None = None,
    *,
    center: str = "mean",
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """(x - center) / (scale + eps) within each group, exactly 0 where there is nothing to compare.

    center  "mean" | "leave_one_out" | "median" | "none"
    scale   "std" (`ddof`; eps is added to the std) | "none" (eps unused)
    Exactly 0 for: members of no group; a single counting member measured against itself; a member that is not
    compared and finds fewer counting members than the statistic needs (1, or ddof + 1 with a std); with a std,
    every member of a group whose compared members are equal, whatever the center (there is no spread to measure
    by, and eps is no substitute for one); and, centred without a std, the compared members of such a group.
    """
    centers = {"mean": mean, "leave_one_out": leave_one_out, "median": median}
    if center != "none" and center not in centers:
        raise ValueError(f"center is one of {[*centers, 'none']}, not {center!r}")
    if scale not in ("std", "none"):
        raise ValueError(f"scale is 'std' or 'none', not {scale!r}")
    zero = torch.zeros(ids.shape, dtype=torch.float64)
    enters = (ids >= 0) if where is None else (ids >= 0) & where
    centred = x.to(torch.float64) - (zero if center == "none" else centers[center](x, ids, where))
    if center != "none":
        centred = torch.where(enters & degenerate(x, ids, where), zero, centred)
    if scale == "std":
        spread = std(x, ids, where, ddof)
        centred = torch.where(spread > 0, centred / (spread + eps), zero)
    return torch.where(count(ids, where) > 0, centred, zero)
