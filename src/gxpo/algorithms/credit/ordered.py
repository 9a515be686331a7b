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
    # Step size of the dual ascent: 1 over the largest eigenvalue of G G'.
    rate = 0.5 / float(degree.max())  # the largest eigenvalue of G G' is at most twice the largest degree

    def point(x: Tensor) -> Tensor:
        return a.index_add(0, low, -x).index_add_(0, high, x)

    x = torch.zeros(low.shape, dtype=torch.float64)
    x_ahead, momentum = x, 1.0
    magnitude = max(1.0, float(a.abs().max()))
    for _ in range(_ROUNDS):
        a_ahead = point(x_ahead)
        x_next = (x_ahead + rate * (a_ahead[low] + margin - a_ahead[high])).clamp_min(0)
        change = x_next - x
        if (
            float((x_next - x_ahead).abs().max()) <= _CLOSE * magnitude
            and float(change.abs().max()) <= _CLOSE * magnitude
        ):
            return point(x_next)
        # Momentum restarts where a step points back, or it would circle around the solution.
        turns_back = float(((x_ahead - x_next) * change).sum()) > 0
        next_momentum = 1.0 if turns_back else (1 + (1 + 4 * momentum * momentum) ** 0.5) / 2
        x_ahead = x_next if turns_back else x_next + (momentum - 1) / next_momentum * change
        x, momentum = x_next, next_momentum
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
    """Order-constrained advantages: min |a - r0|^2 / 2 with a[low] + margin <= a[high], sum a = 0 and |a|^2 <= n.

    reward  [R]; r0 = reward - mean of its group of n; sum and norm are of each group
    group   [R] int64 dense ids, -1 = in no group
    low, high   [m] rows of one group, the second to have more; without circles
    where   [R] bool, compared: rows in means and sums, and under constraints. The others have r0

    Returns [R] float64. Without constraints r0 (Dr. GRPO, but for its aggregation). A constraint moves its two rows by
    opposite amounts, so the sum stays 0. Where |a|^2 > n, r0 is shrunk towards 0 until the bound is met, as the
    multiplier of the bound does; rewards from 0 to 1 never come near it.

    Source: Tree-OPO, arXiv 2509.09284, after notes of others; there is no code.
    """
    is_member_R = (group >= 0) if where is None else (group >= 0) & where
    centred_R = grouped.normalize(reward, group, where, scale="none")
    a = project(centred_R, low, high, margin)
    group_size_R = grouped.count(group, is_member_R)

    def exceeds_bound(x: Tensor) -> Tensor:
        return grouped.sum(torch.where(is_member_R, x.square(), 0.0), group, is_member_R) > group_size_R * (1 + 1e-12)

    # The usual case: rewards from 0 to 1 never reach the bound on the norm.
    if not bool(exceeds_bound(a).any()):
        return a
    # Bisection for the largest factor of r0 under which the projection keeps the bound; 60 halvings reach float64.
    shrink_low, shrink_high = torch.zeros_like(a), torch.ones_like(a)
    is_bounded_R = exceeds_bound(a)
    for _ in range(60):
        shrink_middle = torch.where(is_bounded_R, (shrink_low + shrink_high) / 2, 1.0)
        a = project(shrink_middle * centred_R, low, high, margin)
        is_over_R = exceeds_bound(a) & is_bounded_R
        shrink_low, shrink_high = (
            torch.where(is_over_R, shrink_low, shrink_middle),
            torch.where(is_over_R, shrink_middle, shrink_high),
        )
    return project(torch.where(is_bounded_R, shrink_low, 1.0) * centred_R, low, high, margin)


# ---------------------------------------------------------------- prefixes
class Prefixes(NamedTuple):
    """Prefixes of trajectories: the tokens before the first trainable one.

    length  [R] number of these tokens
    parent  [R] number before their last piece
    """

    length: Tensor
    parent: Tensor


def prefixes_of(forest: Forest) -> Prefixes:
    """Prefix of every trajectory; all of it where there are no trainable tokens."""
    n_trajectories_R, entries = forest.n_trajectories, torch.arange(forest.n_entries)
    begin_R = begins_of(forest.path_trajectory, n_trajectories_R)
    trained_entry_P = torch.where(forest.path_trainable, entries, forest.n_entries)
    # A trajectory without trained tokens is a prefix as a whole.
    first_trained_R = begin_R[1:].scatter_reduce(0, forest.path_trajectory, trained_entry_P, "amin")
    length = first_trained_R - begin_R[:-1]
    pieces = pieces_of(forest)
    # The parent of a prefix ends where its last piece begins.
    last_piece = pieces.piece[(first_trained_R - 1).clamp_min(0)] if len(entries) else first_trained_R
    parent = torch.where(length > 0, pieces.first[last_piece] - begin_R[:-1], 0) if len(entries) else length
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
    # Every pair of a group, both ways: rows sorted by group, each joined with its group's run.
    order = torch.argsort(group, stable=True)
    starts = begins_of(group[order], int(group.max()) + 1 if group.numel() else 0)
    one = torch.repeat_interleave(torch.arange(len(group)), starts.diff()[group])
    other = order[runs_of(starts, group)]
    begins = begins_of(forest.path_trajectory, forest.n_trajectories)

    def shares_first(size: Tensor) -> Tensor:
        """Return [m] bool: the first `size` tokens of both are the same stored ones."""
        # Stored tokens are shared only with all that comes before them, so that one equal token proves an equal prefix.
        last_offset = (size - 1).clamp_min(0)
        is_within_both = size <= torch.minimum(prefixes.length[one], prefixes.length[other])
        top = max(forest.n_entries - 1, 0)
        a, b = ((begins[r] + last_offset).clamp_max(top) for r in (one, other))
        return is_within_both & ((size == 0) | (forest.path_token[a] == forest.path_token[b]))

    extends = shares_first(prefixes.length[one])
    # Siblings leave one parent, and neither goes on from the other.
    is_extended = shares_first(prefixes.length[other])
    is_same_depth = prefixes.parent[one] == prefixes.parent[other]
    have_prefix = (prefixes.length[one] > 0) & (prefixes.length[other] > 0)
    return Pairs(
        one, other, extends, is_same_depth & have_prefix & shares_first(prefixes.parent[one]) & ~extends & ~is_extended
    )


def order_of(pairs: Pairs, right: Tensor, is_compared_R: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Order constraints: rows [m] and [m], the second of each to have more than the first.

    pair     i failed, j succeeded, and i's prefix is a proper prefix of j's
    triplet  i and j failed at sibling prefixes, a success extends i's and none extends j's

    right [R] bool; is_compared_R bool: rows that take part; length [R] of the prefix. Every constraint leads from a
    row whose prefix a success extends to one that has none or is one, so that they never go round in a circle.
    """
    one, other = pairs.one, pairs.other
    both_compared = is_compared_R[one] & is_compared_R[other]
    is_proper_prefix = both_compared & pairs.extends & (length[one] < length[other])
    leads_to_success_R = torch.zeros(right.shape, dtype=torch.bool)
    # A failed prefix that a success extends is worth more than a sibling that none does.
    leads_to_success_R[one[is_proper_prefix & right[other]]] = True
    is_pair = is_proper_prefix & ~right[one] & right[other]
    is_triplet = (
        both_compared
        & pairs.siblings
        & ~right[one]
        & ~right[other]
        & leads_to_success_R[one]
        & ~leads_to_success_R[other]
    )
    is_constraint = is_pair | is_triplet
    return one[is_constraint], other[is_constraint]


@torch.no_grad()
def prefix_value(reward: Tensor, pairs: Pairs, is_compared_R: Tensor, how: Baseline = "expectation") -> Tensor:
    """Value of each row's prefix, [R] float64: the mean ("expectation"), largest ("optimistic") or smallest
    ("pessimistic") reward of the rows whose prefix begins with it, itself included.

    reward [R]; is_compared_R bool: rows that are counted. A row that no counted one extends has its own reward.
    """
    reward_R = reward.to(torch.float64)
    is_counted = pairs.extends & is_compared_R[pairs.other]
    if how == "expectation":
        value = grouped.mean(reward_R[pairs.other], pairs.one, is_counted)
    else:
        value = (grouped.max if how == "optimistic" else grouped.min)(reward_R[pairs.other], pairs.one, is_counted)
    # The value by rows is read at the pair of a row with itself, of which there is one.
    is_self = pairs.one == pairs.other
    out = reward_R.clone()
    has_value = (grouped.count(pairs.one, is_counted) > 0) & is_self
    out[pairs.one[has_value]] = value[has_value]
    return out


@part("prefix_ordered", stage="credit", requires=("forks",))
def prefix_ordered(
    outcome: Tensor,
    group: Tensor,
    correct: Tensor,
    forest: Forest,
    *,
    variant: Literal["projection", "expectation", "optimistic", "pessimistic"] = "projection",
    margin: Annotated[float, Ge(0)] = 0.01,
    alpha: Annotated[float, Ge(0)] = 0.5,
    scale: bool = False,
    eps: float = 1e-6,
) -> Tensor:
    """Order-constrained advantage (Tree-OPO) among completions of one tree's prefixes; [R] float64.

    variant  "projection": `ordered` under the constraints of `order_of`. "expectation", "optimistic", "pessimistic":
             reward - alpha `prefix_value`, then less the mean of the group
    margin   between the two rows of a constraint
    alpha    share of the prefix's value that is taken off
    scale    divide by the group's std + eps (ddof 1): this undoes what prefixes of different difficulty say

    A trajectory's prefix is the tokens before its first trainable one; the forest tells which trajectories share it.
    Right is the verdict (where there is none: an outcome above 0). Exactly 0 in a group of one or of equal outcomes.
    Without prefixes the projection is `group_relative` with scale "none", and of one prefix for all the other three
    are, too, since they subtract the same from all.
    """
    reward_R, is_compared_R = outcome.to(torch.float64), forest.compared
    prefixes = prefixes_of(forest)
    pairs = pairs_of(forest, prefixes)
    is_equal_R = grouped.degenerate(reward_R, group, is_compared_R)
    # Constraints in groups of equal outcomes would make differences out of nothing: these groups stay 0.
    if variant == "projection":
        low, high = order_of(pairs, correct, is_compared_R & ~is_equal_R, prefixes.length)
        advantage_R = ordered(reward_R, group, low, high, margin, is_compared_R)
    else:
        advantage_R = reward_R - alpha * prefix_value(reward_R, pairs, is_compared_R, variant)
        # Subtracted values differ by prefix, so the group's mean is taken off once more.
        advantage_R = advantage_R - grouped.mean(advantage_R, group, is_compared_R)
    # Divided after the order is met: before, the margin would have another size in every group.
    if scale:
        advantage_R = advantage_R / (grouped.std(advantage_R, group, is_compared_R) + eps)
    return torch.where(is_equal_R | (grouped.count(group, is_compared_R) < 2), 0.0, advantage_R)
