"""Advantages by sets of attempts: pass@k (PKPO, Pass@k training), diverse sets (polychromic objectives)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.forest.grouped import begins_of, dense
from gxpo.parts.registry import part


@torch.no_grad()
def missed(pool: Tensor, wrong: Tensor, k: int) -> Tensor:
    """C(wrong, k) / C(pool, k): the chance that k members drawn from `pool` are all among the `wrong`; float64.

    pool, wrong  whole numbers, of one shape;   k  from 0 to the smallest pool that is asked
    0 where wrong < k. By logarithms of factorials, so that no size overflows.

    >>> round(float(missed(torch.tensor([8]), torch.tensor([6]), 4)), 6)
    0.214286
    """
    enough = (wrong >= k) & (pool >= k)
    of, among = torch.where(enough, pool, k).long(), torch.where(enough, wrong, k).long()
    most = max(int(of.max()), int(among.max())) if of.numel() else 0
    factorial = torch.lgamma(torch.arange(1, most + 2, dtype=torch.float64))  # logarithms, from 0! on
    logs = factorial[among] - factorial[among - k] - factorial[of] + factorial[of - k]
    return torch.where(enough, logs.exp(), 0.0)


@torch.no_grad()
def subset_mean(correct: Tensor, group: Tensor, k: int, where: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Group-relative advantage of sets of k attempts; each attempt has the mean over the sets that hold it.

    A = (1 - R) / (s + eps) if correct, (1 - R - C(n-c-1, k-1) / C(n-1, k-1)) / (s + eps) if wrong, with
    R = 1 - C(n-c, k) / C(n, k) the share of the group's sets with a success and s = sqrt(R (1 - R)).

    correct  [R] bool;   group  [R] int64 dense ids, -1 = in no group
    where    [R] bool, compared (default: all): the n attempts, c of them correct; the others get what those of their
             verdict would have

    Returns [R] float64 with sum 0 over a group. Exactly 0: every set has a success (n - c < k), none has, n < k.
    With k = 1 this is GRPO with ddof 0. Source: pass@k training, arXiv 2508.10751, and its code.
    """
    n, c = grouped.count(group, where), grouped.sum(correct, group, where)
    none, less = missed(n, n - c, k), missed((n - 1).clamp_min(0), n - c - 1, k - 1)
    spread = (none * (1 - none)).sqrt()
    return torch.where(spread > 0, torch.where(correct, none, none - less) / (spread + eps), 0.0)


@torch.no_grad()
def sloo_minus_one(outcome: Tensor, group: Tensor, k: int, where: Tensor | None = None) -> Tensor:
    """k times the mean gain of an attempt over the best of k - 1 others, over all sets of them.

    A_i = k mean_J (max(r_i, max_J r) - max_J r), J of k - 1 of the group's other attempts

    outcome  [R] any real numbers; of 0 and 1: A = k C(n-c, k-1) / C(n-1, k-1) for a success, 0 for a failure
    where    [R] bool, compared (default: all): the n attempts; the others are set against all n of them

    Returns [R] float64, at least 0. The mean over attempts of A_i d log pi(y_i) is an unbiased estimate of the gradient
    of the expected largest of k outcomes (of pass@k), since what is taken off r_i's sets does not depend on y_i. With
    k = 1 there is no set to take off: r_i less the mean of the others (RLOO). Exactly 0: a group of equal outcomes, of
    fewer than k, of one. Source: PKPO, arXiv 2505.15201, eq. 33 times n, so that attempts are averaged.
    """
    scored = (group >= 0) & outcome.isfinite()
    enters = scored if where is None else scored & where
    value = grouped.settled(torch.where(scored, outcome.to(torch.float64), 0.0), group)
    n = grouped.count(group, enters)
    some = scored & (n >= max(k, 2)) & ~grouped.degenerate(value, group, enters)
    if k == 1:
        return torch.where(some, value - grouped.leave_one_out(value, group, enters), 0.0)
    # An attempt adds the gap between two neighbours below it to those sets that lie below the gap.
    order = torch.argsort(value, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    owner, counted, sorted_values = group[order], enters[order].to(torch.float64), value[order]
    first = torch.ones_like(owner, dtype=torch.bool)
    first[1:] = owner[1:] != owner[:-1]
    before = counted.cumsum(0) - counted
    below = before - grouped.min(before, owner)
    step = torch.where(first, 0.0, sorted_values.diff(prepend=sorted_values[:1]))
    added = (step * missed(n[order], below, k - 1)).cumsum(0)
    gain = torch.empty_like(value)
    gain[order] = added - grouped.min(added, owner)
    sets = torch.where(enters, n / (n - k + 1).clamp_min(1), 1.0)  # C(n, k-1) over C(n-1, k-1): one is oneself
    return torch.where(some, k * gain * sets, 0.0)


@torch.no_grad()
def set_leave_one_out(correct: Tensor, group: Tensor, k: int, where: Tensor | None = None) -> Tensor:
    """a_i less the mean of the others' a, with a = C(n-c, k-1) / C(n-1, k-1) if correct, 0 if wrong.

    a is the chance that the attempt is the only success among itself and k - 1 others: `sloo_minus_one` of verdicts
    over k, whose mean is taken off once more. The others' a depend on the attempt itself, so for k > 1 the estimate is
    biased: its expectation over the gradient of pass@k, times k, is 22/21, 10/7 and 34/7 at success rates .1, .5 and .9
    (n 8, k 4). Arguments as of `subset_mean`. Returns [R] float64 with sum 0 over a group, not scaled; exactly 0 in a
    group without successes, of fewer than k, or of one. With k = 1 this is RLOO. Source: `pkpo` in MaxRL's code (arXiv
    2602.02710).
    """
    n, c = grouped.count(group, where), grouped.sum(correct, group, where)
    some = (c > 0) & (n > 1) & (n >= k)
    own = missed((n - 1).clamp_min(0), n - c, k - 1)
    value = torch.where(correct, own * (n - c), -own * c) / (n - 1).clamp_min(1)
    return torch.where(some & (c < n), value, 0.0)


@torch.no_grad()
def max_second(
    outcome: Tensor, group: Tensor, where: Tensor | None = None, scale: str = "std", eps: float = 1e-6
) -> Tensor:
    """(largest - second largest) / (std + eps) for the group's best attempt, 0 for all others: [R] float64.

    where  [R] bool, compared (default: all); the others are given 0
    scale  "std" (one degree of freedom) | "none"

    What the attempt adds to the best of the group. Exactly 0 where two are best, so in binary groups with several
    successes. Source: Tang et al., arXiv 2503.19595; as `grpo_passk` in verl.
    """
    counts = torch.ones_like(group, dtype=torch.bool) if where is None else where
    value = outcome.to(torch.float64)
    best = counts & (group >= 0) & (value == grouped.max(value, group, counts))
    gap = value - grouped.max(value, group, counts & ~best)
    alone = best & (grouped.count(group, best) == 1) & (grouped.count(group, counts) > 1)
    unit = grouped.std(value, group, counts) + eps if scale == "std" else torch.ones_like(gap)
    return torch.where(alone & ~grouped.degenerate(value, group, counts), gap / unit, 0.0)


@part("pass_at_k", stage="credit")
def pass_at_k(
    outcome: Tensor,
    correct: Tensor,
    group: Tensor,
    where: Tensor | None = None,
    *,
    kind: Literal["analytic", "sloo_minus_one", "leave_one_out", "max_second"] = "analytic",
    k: Annotated[int, Ge(1)] = 2,
    eps: float = 1e-6,
) -> Tensor:
    """Pass@k advantage, the same for every token, by one of four estimators:

    kind "analytic"        `subset_mean`, normalised by the std of the sets' results
         "sloo_minus_one"  `sloo_minus_one` of the outcomes, unbiased: PKPO
         "leave_one_out"   `set_leave_one_out`, PKPO as in MaxRL's code
         "max_second"      `max_second` of the outcomes; k is the group itself
    k    attempts that a task is given; a group of fewer has advantage 0, and in "analytic" one of k

    "analytic" and "leave_one_out" read verdicts: a trajectory without one is correct where its outcome is above 0.
    """
    if kind == "max_second":
        return max_second(outcome, group, where, eps=eps)
    if kind == "sloo_minus_one":
        return sloo_minus_one(outcome, group, k, where)
    if kind == "leave_one_out":
        return set_leave_one_out(correct, group, k, where)
    return subset_mean(correct, group, k, where, eps)


# ---------------------------------------------------------------- polychromic objectives
@torch.no_grad()
def set_relative(outcome: Tensor, group: Tensor, key: Tensor, size: int, where: Tensor | None = None) -> Tensor:
    """A_i = mean of f over the sets of `size` members that hold i, less the mean of f over all sets of the group.

    f(set) = (mean outcome of its members) * (number of their different keys) / size

    outcome  [R], in [0, 1] where the score is to be a share
    group    [R] int64 dense ids, -1 = in no group
    key      [R] int64: equal for members of a group that did the same
    where    [R] bool, compared (default: all): sets are made of these; the others are given 0

    Returns [R] float64 with sum 0 over a group. All C(n, size) sets count alike, in closed form: with m members of a
    key, the chance that a set misses it depends on m alone. Exactly 0 in groups of `size` or fewer. Where all
    keys differ this is Dr. GRPO times (n - size) / (size (n - 1)), with `size` 1 Dr. GRPO itself.

    Source: polychromic objectives, arXiv 2509.25424, after a summary; there a few sets are drawn.
    """
    counts = (group >= 0) & (torch.ones_like(group, dtype=torch.bool) if where is None else where)
    r, group = torch.where(counts, outcome.to(torch.float64), 0.0), torch.where(counts, group, -1)
    key = torch.where(counts, dense(group * (int(key.max()) + 1 if len(key) else 1) + key), -1)
    row = torch.arange(len(key), dtype=torch.float64)
    first = counts & (grouped.min(row, key) == row)
    n, m, keys = grouped.count(group), grouped.count(key), grouped.count(group, first)
    alone = missed((n - 1).clamp_min(0), n - 1 - m, size - 1)  # chance that a key is not in a set with one other member
    beside = missed((n - 2).clamp_min(0), n - 2 - m, max(size - 2, 0))  # ... in a set with two members of other keys
    own = r * (keys - grouped.sum(alone, group, first) + alone)
    rest = grouped.sum(r, group)
    others = (rest - r) * (keys - grouped.sum(beside, group, first) + beside)
    others = others + grouped.sum(r * beside, group) - beside * grouped.sum(r, key)
    score = (own + (size - 1) / (n - 1).clamp_min(1) * others) / size**2
    return torch.where(n > size, grouped.normalize(score, group, scale="none"), 0.0)


@torch.no_grad()
def same_actions(forest: Forest) -> Tensor:
    """Ids of equal action sequences, [R] int64. GxpoError where actions are text without token ids.

    By a 64-bit hash of every token with its place: two that differ pass for the same once in 2^64 pairs.
    """
    if forest.text_only:
        forest.need_ids("credit set_relative")
    owner = forest.path_trajectory
    place = torch.arange(forest.n_entries) - begins_of(owner, forest.n_trajectories)[owner]
    hashed = (forest.token[forest.path_token] + 1) * -0x61C8864680B583EB + place * -0x40A7B892E31B1A47  # modulo 2^64
    for shift, odd in ((30, -0x6B2FB644ECCEEE15), (27, 0x2545F4914F6CDD1D), (31, 1)):  # spreads every bit over all
        hashed = (hashed ^ (hashed >> shift)) * odd
    return dense(torch.zeros(forest.n_trajectories, dtype=torch.int64).index_add_(0, owner, hashed))


@part("set_relative", stage="credit", learns_from_equal_groups=True)
def by_sets(
    outcome: Tensor, group: Tensor, forest: Forest, *, size: Annotated[int, Ge(1)] = 2, same: str = "actions"
) -> Tensor:
    """Set-level advantage (polychromic objectives): mean set score (reward times diversity) per rollout.

    `set_relative` of the outcome; [R] float64.

    size  members of a set; the group needs more
    same  what makes two members the same: "actions", all their tokens, or a level of the forest such as "info.answer";
          a trajectory for which it is unknown is like no other

    A group of equal outcomes has advantages where some of its members are the same.
    """
    key = same_actions(forest) if same == "actions" else forest.ids("group", same, axis="R")
    key = torch.where(key < 0, torch.arange(len(key)) + len(key), key)
    return set_relative(outcome, group, key, size, forest.compared)
