"""Advantages with other baselines than the group mean: value predictions, length-weighted, pseudo-rollouts, replay."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.algorithms.credit.relative import group_relative
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part

Finite = Annotated[float, Interval(gt=-math.inf, lt=math.inf)]


# ---------------------------------------------------------------- V0.5
@torch.no_grad()
def prior_weight(mean: Tensor, prior: Tensor, noise: Tensor) -> Tensor:
    """Weight of the prior in the baseline w prior + (1 - w) mean: w = min(1, noise / (mean - prior)^2), float64.

    mean, prior  [n] in units of reward;   noise  [n] variance of the mean

    The squared distance less the noise estimates the prediction's squared error e; w = noise / (noise + e) has the
    least expected square error, and e is held at 0 from below. A gap within one standard error trusts the prediction
    wholly, a large one hardly at all. Source: V0.5, arXiv 2603.10848.

    >>> prior_weight(torch.tensor([0.25, 0.25]), torch.tensor([0.4, 0.9]), torch.tensor([0.0625, 0.0625]))
    tensor([1.0000, 0.1479], dtype=torch.float64)
    """
    gap_square = (mean.to(torch.float64) - prior.to(torch.float64)).square()
    exceeds_noise = gap_square > noise
    return torch.where(exceeds_noise, noise.to(torch.float64) / torch.where(exceeds_noise, gap_square, 1.0), 1.0)


@part("shrinkage_baseline", stage="credit", learns_from_equal_groups=True)
def shrinkage_baseline(
    outcome: Tensor,
    group: Tensor,
    baseline: Tensor,
    where: Tensor | None = None,
    *,
    variance: Literal["bound", "prior", "sample"] = "prior",
) -> Tensor:
    """Shrinkage-baseline advantage (V0.5): between the group mean and a value prediction, by the noise of the mean.

    A = outcome - (w prior + (1 - w) mean of the group), w of `prior_weight`; [R] float64, nothing is scaled.

    outcome   [R], from 0 to 1 under variances "bound" and "prior"
    group     [R] int64 dense ids, -1 = in no group
    baseline  [R] signal, the prior: what is predicted for each trajectory's task, made without its outcome; nan: no
              prediction, and the baseline is the group's mean
    variance  of one outcome, whose n-th part is the noise of a mean of n: "bound", 1 / 4, the most that outcomes from 0
              to 1 can have (V0.5's 1 for outcomes of -1 and 1); "prior", p (1 - p) at p = prior, which is never more;
              both leave groups of equal outcomes informative; "sample", the group's own (1 degree of freedom taken
              off), which is 0 there, so that their baseline is their mean
    where     [R] bool, compared (default: all): the outcomes that enter the mean

    Without compared members the baseline is the prediction. The mean holds the trajectory's own outcome, as GRPO's.
    """
    n_compared_R = grouped.count(group, where)
    mean, std = grouped.mean_and_std(outcome, group, where)
    # Without a prediction prior = mean, whatever its weight: the baseline is the group's mean.
    has_prior_R = baseline.isfinite() & (group >= 0)
    prior_R = torch.where(has_prior_R, baseline.to(torch.float64), mean)
    # The noise of a mean of n is an outcome's variance over n; a prior outside 0 to 1 has variance 0.
    if variance == "bound":
        variance_R = torch.full_like(prior_R, 0.25)
    else:
        variance_R = (prior_R * (1 - prior_R)).clamp_min(0) if variance == "prior" else std.square()
    weight_R = prior_weight(mean, prior_R, variance_R / n_compared_R.clamp_min(1))
    # `normalize` makes equal outcomes exactly 0; what shrinking changes in the baseline is added to that.
    centred_R = grouped.normalize(outcome, group, where, scale="none")
    return torch.where(
        n_compared_R > 0, centred_R + weight_R * (mean - prior_R), torch.where(has_prior_R, outcome - prior_R, 0.0)
    )


# ---------------------------------------------------------------- OPO, HAPO
@part("length_weighted", stage="credit")
def length_weighted(
    outcome: Tensor,
    length: Tensor,
    group: Tensor,
    where: Tensor | None = None,
    *,
    scale: Literal["none", "std"] = "none",
    eps: Annotated[float, Ge(0)] = 1e-6,
    bound: Annotated[float, Gt(0)] = math.inf,
) -> Tensor:
    """Length-weighted baselines (OPO, HAPO): group statistics weighted by trajectory length.

    A = outcome - b with b = sum_j L_j outcome_j / sum_j L_j over the compared members of the group.

    outcome  [R] any float dtype; the arithmetic is in float64
    length   [R] trainable tokens L of each trajectory, >= 0; a trajectory of length 0 does not move b
    group    [R] int64 dense ids, -1 = in no group
    where    [R] bool, compared (default: all); the others are measured against the compared members' b
    scale    "none" (OPO) | "std": over sqrt(sum_j L_j (outcome_j - b)^2 / sum_j L_j) + eps, the population std of the
             group's tokens
    bound    of "std": a group in which any compared |A| reaches it has GRPO's advantage instead (`group_relative`)

    Returns [R] float64. Over the compared members sum_j L_j A_j = 0 (but where `bound` acts), and equal lengths give
    Dr. GRPO, or, scaled, GRPO with the population std. Unscaled, b minimises the variance of the policy gradient when
    the squared norm of a trajectory's score is proportional to its length. Exactly 0: a group of one, of equal
    outcomes, or without compared members.

    Source: OPO, arXiv 2505.23585, as in verl; it is exact only on policy: one update a batch. HAPO, arXiv 2509.16591,
    and its code ("std", bound 5).
    """
    # A trajectory without trained tokens moves no weighted mean, so it is no member either.
    is_counted_R = (length > 0) if where is None else (length > 0) & where
    n_members_R = grouped.count(group, is_counted_R)
    advantage = outcome.to(torch.float64) - grouped.mean(outcome, group, is_counted_R, weight=length)
    is_equal_R = grouped.degenerate(outcome, group, is_counted_R)
    # Others are still measured against the mean of a flat group; its members are exactly 0.
    has_advantage_R = (group >= 0) & (n_members_R > 0) & ~(is_counted_R & is_equal_R)
    if scale == "none":
        return torch.where(has_advantage_R, advantage, torch.zeros_like(advantage))
    std_R = grouped.mean(advantage.square(), group, is_counted_R, weight=length).sqrt()
    scaled_R = torch.where(has_advantage_R & ~is_equal_R, advantage / (std_R + eps), torch.zeros_like(advantage))
    # HAPO's code falls back to GRPO for the whole group, not for the outlier alone.
    reaches_bound_R = grouped.max((scaled_R.abs() >= bound).to(torch.float64), group, is_counted_R) > 0
    return torch.where(reaches_bound_R, group_relative(outcome, group, where=is_counted_R), scaled_R)


# ---------------------------------------------------------------- NGRPO
@part("pseudo_rollouts", stage="credit", learns_from_equal_groups=True)
def pseudo_rollouts(
    outcome: Tensor,
    group: Tensor,
    where: Tensor | None = None,
    correct: Tensor | None = None,
    *,
    value: Finite = 1.0,
    count: Annotated[int, Ge(1)] = 1,
    groups: Literal["all", "all_right", "all_wrong"] = "all",
    **statistic: Any,
) -> Tensor:
    """Group-relative advantage with pseudo-rollouts (NGRPO, ERPO), so that all-wrong or all-right groups learn.

    `group_relative` over the compared members of each group and `count` more of outcome `value`; [R] float64.

    outcome  [R] any float dtype;   group  [R] int64 dense ids, -1 = in no group
    correct  [R] bool, the verdict, for `groups` other than "all"
    value    in units of the outcome; the best there can be, so that the others fall behind it, or the worst
    groups   which are joined by pseudo-rollouts: "all"; those whose compared members are "all_right", or "all_wrong"
    where    [R] bool, compared (default: all)

    A group of equal outcomes other than `value` has credit: with count 1, and eps 0, -1 / sqrt(G + 1) for each of G
    below it, whatever they and `value` are. That holds for a group of one, too. Equal to `value`: exactly 0. Over a
    group the advantage adds up to -count (value - mean) / (std + eps): below 0, unless all are equal to `value`.

    Source: NGRPO, arXiv 2509.18851; reference code, which gives a group of one its raw reward. "all_right": ERPO, arXiv
    2511.04800.
    """
    # Pseudo-rollouts are appended behind the real ones, enter the statistics, and are cut off the result.
    joined_groups = torch.arange(int(group.max()) + 1 if group.numel() else 0)
    if groups != "all":
        assert correct is not None
        joined_groups = joined_groups[
            _all_hold(correct if groups == "all_right" else ~correct, group, where, len(joined_groups))
        ]
    extended_group = torch.cat([group, joined_groups.repeat(count)])
    extended_outcome = torch.cat(
        [outcome.to(torch.float64), torch.full((len(joined_groups) * count,), value, dtype=torch.float64)]
    )
    extended_where = (
        None if where is None else torch.cat([where, torch.ones(len(joined_groups) * count, dtype=torch.bool)])
    )
    return group_relative(extended_outcome, extended_group, where=extended_where, **statistic)[: len(outcome)]


def _all_hold(holds: Tensor, group: Tensor, where: Tensor | None, n: int) -> Tensor:
    """Return [n] bool by group: it has compared members, and `holds` is true of all of them."""
    is_counted_R = group >= 0 if where is None else where & (group >= 0)
    n_members_G = torch.bincount(group[is_counted_R], minlength=n)
    return (n_members_G > 0) & (n_members_G == torch.bincount(group[is_counted_R & holds], minlength=n))


# ---------------------------------------------------------------- R^3
@part("unfinished_by_rank", stage="credit", learns_from_equal_groups=True)
def unfinished_by_rank(
    outcome: Tensor,
    group: Tensor,
    correct: Tensor,
    complete: Tensor,
    structural_rank: Tensor,
    where: Tensor | None = None,
    *,
    last_reward: Finite = 0.0,
    first_reward: Finite = 0.1,
    **statistic: Any,
) -> Tensor:
    """Group-relative advantage that ranks truncated answers (R^3), of those that are not correct.

    The outcome of such an answer is outcome + last_reward + (first_reward - last_reward) rank.

    outcome          [R] any float dtype;   group  [R] int64 dense ids, -1 = in no group
    complete         [R] bool: not cut off by a limit
    structural_rank  [R] signal, 0 to 1, among the group's truncated answers (`structural_entropy`)
    last_reward, first_reward  what the last and the first of them earn: `first_reward` below what a right answer earns
                     more than a wrong one. Above 0, running into the limit pays more than a wrong end, and is learnt;
                     -0.1 and 0 do not pay for it

    In a group of truncated answers alone the scale of the std makes the smallest difference as large as a verdict's.
    Source: R^3, arXiv 2601.19620.
    """
    # A truncated answer that is right already has its full outcome.
    rank_reward_R = torch.where(
        complete | correct, 0.0, last_reward + (first_reward - last_reward) * structural_rank.to(torch.float64)
    )
    return group_relative(outcome.to(torch.float64) + rank_reward_R, group, where=where, **statistic)


# ---------------------------------------------------------------- AEPO
@part("constant_advantage", stage="credit", learns_from_equal_groups=True)
def constant_advantage(forest: Forest, *, origin: str = "tempered", value: Finite = 1.0) -> Tensor:
    """Constant advantage: `value` for the trajectories of one origin, 0 for others; to be added to another advantage.

    Where such a trajectory is compared with no other (a group of its own), a group-relative advantage is 0, and the
    sum is `value`; [R] float64. Source: AEPO, arXiv 2510.08141, whose tempered samples have advantage 1.
    """
    return torch.tensor(
        [value if trajectory_origin == origin else 0.0 for trajectory_origin in forest.origin], dtype=torch.float64
    )


# ---------------------------------------------------------------- AVATAR, PIPO
@torch.no_grad()
def against(
    outcome: Tensor, baseline: Tensor, group: Tensor, ddof: int = 1, eps: float = 1e-6, where: Tensor | None = None
) -> Tensor:
    """Advantage against a given baseline: A = (outcome - baseline) / (std + eps), std of the group; [R] float64.

    baseline  [R] nan: no baseline for the task, and A is 0
    where     [R] bool: the outcomes that make up the std (default: all)

    Where there is no spread to measure by (equal outcomes, or ddof members) A is outcome - baseline, so that a group
    that is right throughout still tells a policy that is not. The sum over a group is not 0.

    >>> against(torch.tensor([1.0, 1.0]), torch.tensor([0.25, 0.25]), torch.tensor([0, 0])).tolist()
    [0.75, 0.75]
    """
    gap_R = outcome.to(torch.float64) - baseline.to(torch.float64)
    # No spread to divide by: an all-right group still teaches a policy whose baseline is lower.
    std_R = grouped.std(outcome, group, where, ddof)
    return torch.where(std_R > 0, gap_R / (std_R + eps), gap_R).nan_to_num(nan=0.0)


@part("replay_baseline", stage="credit", learns_from_equal_groups=True)
def replay_baseline(
    outcome: Tensor, group: Tensor, baseline: Tensor, replayed: Tensor, where: Tensor, **statistic: Any
) -> Tensor:
    """Group-relative advantages of fresh rollouts, `against` the current policy's baseline of replayed ones (AVATAR).

    baseline  [R] signal;   replayed  [R] bool, of origin "replay". Source: AVATAR, arXiv 2508.03100.
    """
    # Replayed outcomes were earned by an older policy: measured by the present one's baseline, not by each other.
    replay_advantage_R = against(outcome, baseline, group, statistic["ddof"], statistic["eps"], where & replayed)
    return torch.where(replayed, replay_advantage_R, group_relative(outcome, group, where=where, **statistic))


@torch.no_grad()
def shares(advantage: Tensor, group: Tensor, eps: float = 1e-6, where: Tensor | None = None) -> Tensor:
    """Advantage shares: a_i = G A_i / (sum_j |A_j| + eps), G and the sum over the group's counted members; [R] float64.

    sum_i |a_i| = G up to eps: every group is moved as far, whatever the scale of its advantages.

    >>> shares(torch.tensor([1.5, -0.5, -0.5, -0.5]), torch.zeros(4, dtype=torch.int64), eps=0.0)
    tensor([ 2.0000, -0.6667, -0.6667, -0.6667], dtype=torch.float64)
    """
    total_R = grouped.sum(advantage.abs(), group, where) + eps
    scaled_R = grouped.count(group, where) * advantage.to(torch.float64)
    return torch.where(total_R > 0, scaled_R / torch.where(total_R > 0, total_R, 1.0), 0.0)


@part("retrospective", stage="credit")
def retrospective(
    advantage: Tensor, group: Tensor, improvement: Tensor, replayed: Tensor, where: Tensor, *, share_eps: float = 1e-6
) -> Tensor:
    """Retrospective advantages (PIPO): `shares` times the improvement since, of replayed rollouts; GRPO of fresh ones.

    improvement  [R] signal: how much better (above 0) or worse (below) the policy has become since the replayed
                 rollouts were trained on;   replayed  [R] bool, of origin "replay";   share_eps  of `shares`

    Source: PIPO, arXiv 2604.00860.
    """
    return torch.where(replayed, shares(advantage, group, share_eps, where) * improvement, advantage)
