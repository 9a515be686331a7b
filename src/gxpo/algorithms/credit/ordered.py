"""Order-constrained advantages of completions from the prefixes of a tree (Tree-OPO)."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.forest.grouped import begins_of, runs_of
from gxpo.forest.reshape import pieces_of
from gxpo.parts.registry import part

Baseline = Literal["expectation", "optimistic", "pessimistic"]
_ROUNDS, _CLOSE = 20_000, 1e-12


# ---------------------------------------------------------------- the projection
@torch.no_grad()
def project(start: Tensor, low: Tensor, high: Tensor, margin: float) -> Tensor:
    """Projection of `start` [n] onto the set a[low] + margin <= a[high] for all constraints [m], [m]; float64.

    Sums over connected rows are kept. By accelerated ascent of the dual, a = start - G' x with x >= 0, restarted where
    it turns back: all constraints of all groups at once, since groups share none. GxpoError where constraints go round
    in a circle: there is no such point.
    """
    a = start.to(torch.float64)
    if not low.numel():
        return a
    degree = torch.bincount(torch.cat([low, high]), minlength=len(a))
    rate = 0.5 / float(degree.max())  # the largest eigenvalue of G G' is at most twice the largest degree

    def point(x: Tensor) -> Tensor:
        return a.index_add(0, low, -x).index_add_(0, high, x)

    x = torch.zeros(low.shape, dtype=torch.float64)
    ahead, pace = x, 1.0
    size = max(1.0, float(a.abs().max()))
    for _ in range(_ROUNDS):
        at = point(ahead)
        fresh = (ahead + rate * (at[low] + margin - at[high])).clamp_min(0)
        move = fresh - x
        if float((fresh - ahead).abs().max()) <= _CLOSE * size and float(move.abs().max()) <= _CLOSE * size:
            return point(fresh)
        back = float(((ahead - fresh) * move).sum()) > 0
        following = 1.0 if back else (1 + (1 + 4 * pace * pace) ** 0.5) / 2
        ahead = fresh if back else fresh + (pace - 1) / following * move
        x, pace = fresh, following
    raise GxpoError("the order of the prefixes can't be met: leave out constraints that go round in a circle")


@torch.no_grad()
def ordered(
    reward: Tensor,
    group: Tensor,
    low: Tensor,
    high: Tensor,
    margin: float = 0.01,
    where: Tensor | None = None,
) -> Tensor:
    """min |a - r0|^2 / 2 over a with a[low] + margin <= a[high], sum a = 0 and |a|^2 <= n, in every group of n.

    reward  [R]; r0 = reward - mean of its group
    group   [R] int64 dense ids, -1 = in no group
    low, high   [m] rows of one group, the second to have more; without circles
    where   [R] bool, compared: which are in means and sums; constraints are to be among these. The others have r0

    Returns [R] float64. Without constraints r0 (Dr. GRPO, but for its aggregation). A constraint moves its two rows by
    opposite amounts, so the sum stays 0. Where |a|^2 > n, r0 is shrunk towards 0 until the bound is met, as the
    multiplier of the bound does; rewards from 0 to 1 never come near it.

    Source: Tree-OPO, arXiv 2509.09284, after notes of others; there is no code.
    """
    members = (group >= 0) if where is None else (group >= 0) & where
    start = grouped.normalize(reward, group, where, scale="none")
    a = project(start, low, high, margin)
    size = grouped.count(group, members)

    def long(x: Tensor) -> Tensor:
        return grouped.sum(torch.where(members, x.square(), 0.0), group, members) > size * (1 + 1e-12)

    if not bool(long(a).any()):
        return a
    least, most = torch.zeros_like(a), torch.ones_like(a)
    bounded = long(a)
    for _ in range(60):
        middle = torch.where(bounded, (least + most) / 2, 1.0)
        a = project(middle * start, low, high, margin)
        over = long(a) & bounded
        least, most = torch.where(over, least, middle), torch.where(over, middle, most)
    return project(torch.where(bounded, least, 1.0) * start, low, high, margin)


# ---------------------------------------------------------------- prefixes
class Prefixes(NamedTuple):
    """Prefixes of trajectories: the tokens before the first trainable one.

    length  [R] how many
    parent  [R] number of them before their last piece
    """

    length: Tensor
    parent: Tensor


def prefixes_of(forest: Forest) -> Prefixes:
    """Prefix of every trajectory; all of it where there are no trainable tokens."""
    n, entries = forest.n_trajectories, torch.arange(forest.n_entries)
    begins = begins_of(forest.path_trajectory, n)
    trained = torch.where(forest.path_trainable, entries, forest.n_entries)
    first = begins[1:].scatter_reduce(0, forest.path_trajectory, trained, "amin")
    length = first - begins[:-1]
    pieces = pieces_of(forest)
    last = pieces.piece[(first - 1).clamp_min(0)] if len(entries) else first
    parent = torch.where(length > 0, pieces.first[last] - begins[:-1], 0) if len(entries) else length
    return Prefixes(length, parent)


class Pairs(NamedTuple):
    """All ordered pairs of members of one group, [m] each, including pairs of a row with itself.

    extends   the second's prefix begins with the whole of the first's
    siblings  both prefixes have the same parent, and neither begins with the other
    """

    one: Tensor
    other: Tensor
    extends: Tensor
    siblings: Tensor


def pairs_of(forest: Forest, prefixes: Prefixes) -> Pairs:
    """Pairs by stored tokens: two prefixes are equal only where their tokens are stored once."""
    group = forest.ids("group", axis="R")
    order = torch.argsort(group, stable=True)
    starts = begins_of(group[order], int(group.max()) + 1 if group.numel() else 0)
    one = torch.repeat_interleave(torch.arange(len(group)), starts.diff()[group])
    other = order[runs_of(starts, group)]
    begins = begins_of(forest.path_trajectory, forest.n_trajectories)

    def share(size: Tensor) -> Tensor:
        """Whether the first `size` tokens of both are the same stored ones."""
        last = (size - 1).clamp_min(0)
        inside = size <= torch.minimum(prefixes.length[one], prefixes.length[other])
        top = max(forest.n_entries - 1, 0)
        a, b = ((begins[r] + last).clamp_max(top) for r in (one, other))
        return inside & ((size == 0) | (forest.path_token[a] == forest.path_token[b]))

    extends = share(prefixes.length[one])
    back = share(prefixes.length[other])
    level = prefixes.parent[one] == prefixes.parent[other]
    has = (prefixes.length[one] > 0) & (prefixes.length[other] > 0)
    return Pairs(one, other, extends, level & has & share(prefixes.parent[one]) & ~extends & ~back)


def order_of(pairs: Pairs, right: Tensor, known: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Order constraints: rows [m], [m], of which the second gets more than the first.

    pair     i failed, j succeeded, and i's prefix is a proper prefix of j's
    triplet  i and j failed at sibling prefixes, a success extends i's and none extends j's

    right [R] bool; known [R] bool: which take part; length [R] of the prefix. Every constraint leads from a row whose
    prefix a success extends to one that has none or is one, so that they never go round in a circle.
    """
    one, other = pairs.one, pairs.other
    takes = known[one] & known[other]
    proper = takes & pairs.extends & (length[one] < length[other])
    proven = torch.zeros(right.shape, dtype=torch.bool)
    proven[one[proper & right[other]]] = True
    pair = proper & ~right[one] & right[other]
    triplet = takes & pairs.siblings & ~right[one] & ~right[other] & proven[one] & ~proven[other]
    kept = pair | triplet
    return one[kept], other[kept]


@torch.no_grad()
def prefix_value(reward: Tensor, pairs: Pairs, known: Tensor, how: Baseline = "expectation") -> Tensor:
    """Value of each row's prefix, [R] float64: the mean ("expectation"), largest ("optimistic") or smallest
    ("pessimistic") reward of the rows whose prefix begins with it, itself included.

    reward [R]; known [R] bool: which are counted. A row that no counted one extends has its own reward.
    """
    own = reward.to(torch.float64)
    counts = pairs.extends & known[pairs.other]
    if how == "expectation":
        value = grouped.mean(own[pairs.other], pairs.one, counts)
    else:
        value = (grouped.max if how == "optimistic" else grouped.min)(own[pairs.other], pairs.one, counts)
    itself = pairs.one == pairs.other
    out = own.clone()
    has = (grouped.count(pairs.one, counts) > 0) & itself
    out[pairs.one[has]] = value[has]
    return out


@part("prefix_ordered", stage="credit", requires=("forks",))
def prefix_ordered(
    outcome: Tensor,
    group: Tensor,
    correct: Tensor,
    forest: Forest,
    *,
    how: Literal["projection", "expectation", "optimistic", "pessimistic"] = "projection",
    margin: Annotated[float, Ge(0)] = 0.01,
    alpha: Annotated[float, Ge(0)] = 0.5,
    scale: bool = False,
    eps: float = 1e-6,
) -> Tensor:
    """Order-constrained advantage (Tree-OPO) among completions of one tree's prefixes; [R] float64.

    how      "projection": `ordered` under the constraints of `order_of`. "expectation", "optimistic", "pessimistic":
             reward - alpha `prefix_value`, then less the mean of the group
    margin   between the two rows of a constraint
    alpha    share of the prefix's value that is taken off
    scale    divide by the group's std + eps (ddof 1): this undoes what prefixes of different difficulty say

    A trajectory's prefix is the tokens before its first trainable one; the forest tells which trajectories share it.
    Right is the verdict (where there is none: an outcome above 0). Exactly 0 in a group of one or of equal outcomes.
    Without prefixes the projection is `group_relative` with scale "none", and of one prefix for all the other three
    are, too, since they subtract the same from all.
    """
    reward, known = outcome.to(torch.float64), forest.compared
    prefixes = prefixes_of(forest)
    pairs = pairs_of(forest, prefixes)
    equal = grouped.degenerate(reward, group, known)
    if how == "projection":
        low, high = order_of(pairs, correct, known & ~equal, prefixes.length)
        advantage = ordered(reward, group, low, high, margin, known)
    else:
        advantage = reward - alpha * prefix_value(reward, pairs, known, how)
        advantage = advantage - grouped.mean(advantage, group, known)
    if scale:
        advantage = advantage / (grouped.std(advantage, group, known) + eps)
    return torch.where(equal | (grouped.count(group, known) < 2), 0.0, advantage)
