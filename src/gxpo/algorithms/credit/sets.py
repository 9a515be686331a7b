"""Advantages over sets of attempts: pass@k (PKPO), diverse sets (polychromic), right-wrong pairs (CAPO)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.forest.grouped import begins_of, dense, repeated, runs_of
from gxpo.parts.registry import part


@torch.no_grad()
def miss_probability(pool: Tensor, wrong: Tensor, k: int) -> Tensor:
    """Probability that k members drawn from `pool` are all among the `wrong`: C(wrong, k) / C(pool, k), float64.

    pool, wrong  whole numbers, of one shape;   k  from 0 to the smallest pool
    0 where wrong < k. By logarithms of factorials, so that no size overflows.

    >>> round(float(miss_probability(torch.tensor([8]), torch.tensor([6]), 4)), 6)
    0.214286
    """
    enough = (wrong >= k) & (pool >= k)
    pool_size, wrong_count = torch.where(enough, pool, k).long(), torch.where(enough, wrong, k).long()
    largest = max(int(pool_size.max()), int(wrong_count.max())) if pool_size.numel() else 0
    factorial = torch.lgamma(torch.arange(1, largest + 2, dtype=torch.float64))  # logarithms, from 0! on
    logs = factorial[wrong_count] - factorial[wrong_count - k] - factorial[pool_size] + factorial[pool_size - k]
    return torch.where(enough, logs.exp(), 0.0)


@torch.no_grad()
def subset_mean(correct: Tensor, group: Tensor, k: int, where: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """Group-relative advantage of sets of k attempts; each attempt has the mean over the sets that hold it.

    A = (1 - R) / (s + eps) if correct, (1 - R - C(n-c-1, k-1) / C(n-1, k-1)) / (s + eps) if wrong, with
    R = 1 - C(n-c, k) / C(n, k) the share of the group's sets with a success and s = sqrt(R (1 - R)).

    correct  [R] bool;   group  [R] int64 dense ids, -1 = in no group
    where    [R] bool, compared (default: all): the n attempts, c of them correct; the others have the advantage of
             their verdict

    Returns [R] float64 with sum 0 over a group. Exactly 0: every set has a success (n - c < k), none has, n < k.
    With k = 1 this is GRPO with ddof 0. Source: pass@k training, arXiv 2508.10751, and its code.
    """
    n, c = grouped.count(group, where), grouped.sum(correct, group, where)
    # 1 - R, the chance of a set without a success, and the same for the sets of a wrong attempt.
    all_wrong, all_wrong_with_it = (
        miss_probability(n, n - c, k),
        miss_probability((n - 1).clamp_min(0), n - c - 1, k - 1),
    )
    spread = (all_wrong * (1 - all_wrong)).sqrt()
    return torch.where(spread > 0, torch.where(correct, all_wrong, all_wrong - all_wrong_with_it) / (spread + eps), 0.0)


@torch.no_grad()
def sloo_minus_one(outcome: Tensor, group: Tensor, k: int, where: Tensor | None = None) -> Tensor:
    """Pass@k gradient weights (PKPO): k times the mean gain of an attempt over the best of k - 1 others.

    A_i = k mean_J (max(r_i, max_J r) - max_J r), J all sets of k - 1 of the group's other attempts

    outcome  [R] any real numbers; of 0 and 1: A = k C(n-c, k-1) / C(n-1, k-1) for a success, 0 for a failure
    where    [R] bool, compared (default: all): the n attempts; the others are set against all n of them

    Returns [R] float64, at least 0. The mean over attempts of A_i d log pi(y_i) is an unbiased estimate of the gradient
    of the expected largest of k outcomes (of pass@k), since what is taken off r_i's sets does not depend on y_i. With
    k = 1 there is no set to take off: r_i less the mean of the others (RLOO). Exactly 0: a group of equal outcomes, of
    fewer than k, of one. Source: PKPO, arXiv 2505.15201, eq. 33 times n, so that attempts are averaged.
    """
    is_scored_R = (group >= 0) & outcome.isfinite()
    is_counted_R = is_scored_R if where is None else is_scored_R & where
    # Outcomes that differ by rounding are one: order and gaps below decide.
    value = grouped.settled(torch.where(is_scored_R, outcome.to(torch.float64), 0.0), group)
    n = grouped.count(group, is_counted_R)
    has_advantage_R = is_scored_R & (n >= max(k, 2)) & ~grouped.degenerate(value, group, is_counted_R)
    if k == 1:
        return torch.where(has_advantage_R, value - grouped.leave_one_out(value, group, is_counted_R), 0.0)
    # An attempt adds the gap between two neighbours below it to those sets that lie below the gap.
    order = torch.argsort(value, stable=True)
    order = order[torch.argsort(group[order], stable=True)]
    owner, is_counted_sorted, sorted_values = group[order], is_counted_R[order].to(torch.float64), value[order]
    first = torch.ones_like(owner, dtype=torch.bool)
    first[1:] = owner[1:] != owner[:-1]
    n_before = is_counted_sorted.cumsum(0) - is_counted_sorted
    n_below = n_before - grouped.min(n_before, owner)
    gap_below = torch.where(first, 0.0, sorted_values.diff(prepend=sorted_values[:1]))
    # Running sums over the sorted outcomes, so that all attempts of all groups take one pass.
    cumulative_gain = (gap_below * miss_probability(n[order], n_below, k - 1)).cumsum(0)
    gain = torch.empty_like(value)
    gain[order] = cumulative_gain - grouped.min(cumulative_gain, owner)
    set_ratio_R = torch.where(
        is_counted_R, n / (n - k + 1).clamp_min(1), 1.0
    )  # C(n, k-1) over C(n-1, k-1): one is oneself
    return torch.where(has_advantage_R, k * gain * set_ratio_R, 0.0)


@torch.no_grad()
def set_leave_one_out(correct: Tensor, group: Tensor, k: int, where: Tensor | None = None) -> Tensor:
    """Leave-one-out pass@k: a_i minus the mean of the others' a, a = C(n-c, k-1) / C(n-1, k-1) if correct, 0 if wrong.

    a is the chance that the attempt is the only success among itself and k - 1 others: `sloo_minus_one` of verdicts
    over k, whose mean is taken off once more. The others' a depend on the attempt itself, so for k > 1 the estimate is
    biased: its expectation over the gradient of pass@k, times k, is 22/21, 10/7 and 34/7 at success rates .1, .5 and .9
    (n 8, k 4). Arguments as of `subset_mean`. Returns [R] float64 with sum 0 over a group, not scaled; exactly 0 in a
    group without successes, of fewer than k, or of one. With k = 1 this is RLOO. Source: `pkpo` in MaxRL's code (arXiv
    2602.02710).
    """
    n, c = grouped.count(group, where), grouped.sum(correct, group, where)
    has_advantage_R = (c > 0) & (n > 1) & (n >= k)
    sole_success = miss_probability((n - 1).clamp_min(0), n - c, k - 1)
    value = torch.where(correct, sole_success * (n - c), -sole_success * c) / (n - 1).clamp_min(1)
    return torch.where(has_advantage_R & (c < n), value, 0.0)


@torch.no_grad()
def max_second(
    outcome: Tensor,
    group: Tensor,
    where: Tensor | None = None,
    scale: str = "std",
    eps: float = 1e-6,
    against: str = "second",
) -> Tensor:
    """Best-of-group advantage: (largest - second largest) / (std + eps) for the best attempt, else 0; [R] float64.

    where  [R] bool, compared (default: all); the others are given 0
    scale  "std" (one degree of freedom) | "none"
    against  "second", or "others": the mean of the others is taken off in place of the second largest

    What the attempt adds to the best of the group. Exactly 0 where two are best, so in binary groups with several
    successes. Source: Tang et al., arXiv 2503.19595; as `grpo_passk` in verl.
    """
    is_counted_R = torch.ones_like(group, dtype=torch.bool) if where is None else where
    value = outcome.to(torch.float64)
    is_best_R = is_counted_R & (group >= 0) & (value == grouped.max(value, group, is_counted_R))
    # The second largest is the largest of all but the best; a tie for the best leaves no gap to reward.
    if against == "others":
        gap = value - grouped.leave_one_out(value, group, is_counted_R)
    else:
        gap = value - grouped.max(value, group, is_counted_R & ~is_best_R)
    is_sole_best_R = is_best_R & (grouped.count(group, is_best_R) == 1) & (grouped.count(group, is_counted_R) > 1)
    unit = grouped.std(value, group, is_counted_R) + eps if scale == "std" else torch.ones_like(gap)
    return torch.where(is_sole_best_R & ~grouped.degenerate(value, group, is_counted_R), gap / unit, 0.0)


@part("pass_at_k", stage="credit")
def pass_at_k(
    outcome: Tensor,
    correct: Tensor,
    group: Tensor,
    where: Tensor | None = None,
    *,
    kind: Literal["analytic", "sloo_minus_one", "leave_one_out", "max_second", "max_mean"] = "analytic",
    k: Annotated[int, Ge(1)] = 2,
    eps: float = 1e-6,
) -> Tensor:
    """Pass@k advantage, the same for every token, by one of five estimators:

    kind "analytic"        `subset_mean`, normalised by the std of the sets' results
         "sloo_minus_one"  `sloo_minus_one` of the outcomes, unbiased: PKPO
         "leave_one_out"   `set_leave_one_out`, PKPO as in MaxRL's code
         "max_second"      `max_second` of the outcomes; k is the group itself
         "max_mean"        the best outcome less the mean of the others, for the best attempt alone; not scaled
    k    attempts that a task is given; a group of fewer has advantage 0, and in "analytic" one of k

    "analytic" and "leave_one_out" read verdicts: a trajectory without one is correct where its outcome is above 0.
    """
    # Estimators of outcomes come first; the other two read verdicts.
    if kind == "max_second":
        return max_second(outcome, group, where, eps=eps)
    if kind == "max_mean":
        return max_second(outcome, group, where, "none", against="others")
    if kind == "sloo_minus_one":
        return sloo_minus_one(outcome, group, k, where)
    if kind == "leave_one_out":
        return set_leave_one_out(correct, group, k, where)
    return subset_mean(correct, group, k, where, eps)


# ---------------------------------------------------------------- polychromic objectives
@torch.no_grad()
def set_relative(outcome: Tensor, group: Tensor, key: Tensor, size: int, where: Tensor | None = None) -> Tensor:
    """Set-level advantage: A_i = mean of f over the sets that hold i, minus the mean of f over all sets of the group.

    f(set of `size` members) = (mean outcome of its members) * (number of their different keys) / size

    outcome  [R], in [0, 1] where the score is to be a share
    group    [R] int64 dense ids, -1 = in no group
    key      [R] int64: equal for members of a group that did the same
    where    [R] bool, compared (default: all): sets are made of these; the others are given 0

    Returns [R] float64 with sum 0 over a group. All C(n, size) sets count alike, in closed form: with m members of a
    key, the chance that a set misses it depends on m alone. Exactly 0 in groups of `size` or fewer. Where all
    keys differ this is Dr. GRPO times (n - size) / (size (n - 1)), with `size` 1 Dr. GRPO itself.

    Source: polychromic objectives, arXiv 2509.25424, after a summary; there a few sets are drawn.
    """
    is_counted_R = (group >= 0) & (torch.ones_like(group, dtype=torch.bool) if where is None else where)
    r, group = torch.where(is_counted_R, outcome.to(torch.float64), 0.0), torch.where(is_counted_R, group, -1)
    # Keys are compared inside a group only: equal keys of two groups are two.
    key = torch.where(is_counted_R, dense(group * (int(key.max()) + 1 if len(key) else 1) + key), -1)
    row_R = torch.arange(len(key), dtype=torch.float64)
    # One row stands for each key in sums over different keys.
    is_first_R = is_counted_R & (grouped.min(row_R, key) == row_R)
    n, m, keys = grouped.count(group), grouped.count(key), grouped.count(group, is_first_R)
    # A key counts in a set unless the set misses it: chances of missing it beside i, and beside i and another.
    miss_beside_one = miss_probability(
        (n - 1).clamp_min(0), n - 1 - m, size - 1
    )  # chance that a key is not in a set with one other member
    miss_beside_two = miss_probability(
        (n - 2).clamp_min(0), n - 2 - m, max(size - 2, 0)
    )  # ... in a set with two members of other keys
    # f = mean outcome times keys, summed over the outcome of i itself and over those of its partners.
    own_term = r * (keys - grouped.sum(miss_beside_one, group, is_first_R) + miss_beside_one)
    outcome_sum = grouped.sum(r, group)
    others_term = (outcome_sum - r) * (keys - grouped.sum(miss_beside_two, group, is_first_R) + miss_beside_two)
    others_term = others_term + grouped.sum(r * miss_beside_two, group) - miss_beside_two * grouped.sum(r, key)
    score = (own_term + (size - 1) / (n - 1).clamp_min(1) * others_term) / size**2
    return torch.where(n > size, grouped.normalize(score, group, scale="none"), 0.0)


@torch.no_grad()
def same_actions(forest: Forest) -> Tensor:
    """Ids of equal action sequences, [R] int64. GxpoError where actions are text without token ids.

    By a 64-bit hash of every token with its place: two that differ pass for the same once in 2^64 pairs.
    """
    if forest.text_only:
        forest.need_ids("credit set_relative")
    owner_P = forest.path_trajectory
    position_P = torch.arange(forest.n_entries) - begins_of(owner_P, forest.n_trajectories)[owner_P]
    # A sum over places of mixed (token, place) hashes: equal sequences have equal sums, in any order of rows.
    hash_P = (
        forest.token[forest.path_token] + 1
    ) * -0x61C8864680B583EB + position_P * -0x40A7B892E31B1A47  # modulo 2^64
    for shift, odd in ((30, -0x6B2FB644ECCEEE15), (27, 0x2545F4914F6CDD1D), (31, 1)):  # spreads every bit over all
        hash_P = (hash_P ^ (hash_P >> shift)) * odd
    return dense(torch.zeros(forest.n_trajectories, dtype=torch.int64).index_add_(0, owner_P, hash_P))


@part("set_relative", stage="credit", learns_from_equal_groups=True)
def by_sets(
    outcome: Tensor, group: Tensor, forest: Forest, *, size: Annotated[int, Ge(1)] = 2, identity: str = "actions"
) -> Tensor:
    """Set-level advantage (polychromic objectives): mean set score (reward times diversity) per rollout.

    `set_relative` of the outcome; [R] float64.

    size  members of a set; the group needs more
    identity  what makes two members the same: "actions", all their tokens, or a level of the forest such as
          "info.answer"; a trajectory for which it is unknown is like no other

    A group of equal outcomes has advantages where some of its members are the same.
    """
    key = same_actions(forest) if identity == "actions" else forest.ids("group", identity, axis="R")
    # An unknown key is one of its own: behind all others.
    key = torch.where(key < 0, torch.arange(len(key)) + len(key), key)
    return set_relative(outcome, group, key, size, forest.compared)


@part("pairwise_auc", stage="credit")
def pairwise_auc(
    mean_behaviour_logprob: Tensor,
    correct: Tensor,
    group: Tensor,
    acts: Tensor | None = None,
    *,
    tau: Annotated[float, Gt(0)] = 0.6,
) -> Tensor:
    """Pairwise AUC advantage (CAPO, calibration) of mean log-probs: confident mistakes and unsure successes weigh most.

    A_i = sum over wrong j of s(l_j - l_i) if i is correct, -sum over correct j of s(l_i - l_j) if it is wrong.

    s(t) = sigmoid(t / tau) / tau: minus the derivative of the logistic loss log(1 + e^(-t / tau)) of a pair, whose
    sum over pairs is the logistic surrogate of the area under the ROC curve.

    mean_behaviour_logprob  [R] l, the sampler's mean log-prob of each answer's tokens
    correct  [R] bool: the verdict; without one, an outcome above 0
    group    [R] int64 dense ids, -1 = in no group
    acts     [R] bool, compared and with tokens (default: all): opponents; the others are compared with them as well

    [R] float64, summing to 0 over a group of compared members; 0 in groups without both. Time and memory are of the
    number of pairs. tau to infinity, times 2 tau / G: outcome - mean. Source: arXiv 2604.12632.

    >>> l, right = torch.tensor([-0.2, -0.6, -0.4]), torch.tensor([True, True, False])
    >>> [round(a, 6) for a in pairwise_auc(l, right, torch.zeros(3).long(), tau=0.5).tolist()]
    [0.802625, 1.197375, -2.0]
    """
    is_opponent_R = group >= 0 if acts is None else acts & (group >= 0)
    is_correct_R, x = correct.to(torch.int64), mean_behaviour_logprob.to(torch.float64)
    # Two ids a group: its right and its wrong attempts; each row is paired with the other side's opponents.
    side_id_R, rival_id_R = 2 * group + is_correct_R, 2 * group + 1 - is_correct_R
    n_sides = 2 * (int(group.max()) + 1) if group.numel() else 0
    opponents = is_opponent_R.nonzero().squeeze(1)
    opponents = opponents[torch.argsort(side_id_R[opponents], stable=True)]
    begins = begins_of(side_id_R[opponents], n_sides)
    # Rows that are no opponents themselves are paired as well: they are measured by those that are.
    rows = (group >= 0).nonzero().squeeze(1)
    i = repeated(rows, begins.diff()[rival_id_R[rows]])
    j = opponents[runs_of(begins, rival_id_R[rows])]
    # Right attempts are pulled up by every wrong one, wrong ones down by every right one.
    sign = 2.0 * is_correct_R[i] - 1.0
    pull = sign * torch.sigmoid(-sign * (x[i] - x[j]) / tau) / tau
    return torch.zeros_like(x).index_add_(0, i, pull)
