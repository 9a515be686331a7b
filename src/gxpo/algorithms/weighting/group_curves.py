"""Curves for `GroupWeight`: group weight as a function of success rate, entropy or another statistic."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Interval
from torch import Tensor

from gxpo.forest import grouped
from gxpo.parts.functions import checked_by


def noise_aware(
    rate: Tensor, *, flip: Annotated[float, Interval(ge=0, lt=0.5)] = 0.1, eps: Annotated[float, Gt(0)] = 1e-8
) -> Tensor:
    """w = (1 - 2 flip) t (1 - t) / (sqrt(rate (1 - rate) + eps) sqrt(t (1 - t) + eps)).

    flip  probability that a verdict is wrong, either way; t = (rate - flip) / (1 - 2 flip) held in [0, 1] is the share
          that is then expected to be right

    About (1 - 2 flip) times the ratio of the two standard deviations: the factor on the normalised advantage that
    leaves the least squared error against the advantage of the true verdicts. w(rate) = w(1 - rate); 0 where one kind
    of verdict is no commoner than errors; 1 on every mixed group at flip 0.

    Source: S-GRPO, arXiv 2508.05928, and its code.

    >>> [round(w, 6) for w in noise_aware(torch.tensor([0.0, 0.125, 0.25, 0.5])).tolist()]
    [0.0, 0.420883, 0.72111, 0.8]
    """
    observed = rate.to(torch.float64)
    # what remains of the observed rate without wrong verdicts; below the error rate there is nothing to learn
    true_rate = ((observed - flip) / (1 - 2 * flip)).clamp(0.0, 1.0)
    observed_variance, true_variance = observed * (1 - observed), true_rate * (1 - true_rate)
    return (1 - 2 * flip) * true_variance / ((observed_variance + eps).sqrt() * (true_variance + eps).sqrt())


def gaussian_rate(
    rate: Tensor,
    size: Tensor,
    *,
    center: Annotated[float, Interval(ge=0, le=1)] = 0.5,
    sigma: Annotated[float, Gt(0)] = 0.25,
) -> Tensor:
    """Gaussian in the success rate, exp(-(rate - center)^2 / (2 sigma^2)), divided by its mean over the step's groups.

    size  compared trajectories; groups without one are not in the mean

    Weighting the loss like this is, in expectation, drawing questions in proportion to the Gaussian.

    Source: FG-ExPO, arXiv 2605.11403, where questions are drawn by it.

    >>> gaussian_rate(torch.tensor([0.0, 0.5]), torch.ones(2)).round(decimals=6).tolist()
    [0.238406, 1.761594]
    """
    weight = (-((rate.to(torch.float64) - center) ** 2) / (2 * sigma**2)).exp()
    mean = _mean(weight, size > 0)
    return weight / mean if mean > 0 else torch.ones_like(weight)


def beta_density(rate: Tensor, size: Tensor, *, max_density: Annotated[float, Gt(0)] = 1e6) -> Tensor:
    """w = 1 / density of Beta(alpha, beta) at the group's rate, at most `max_density` (BNPO).

    rate  share of the group's compared attempts that are correct
    size  how many are compared: groups of at least two make up mean and variance (ddof 1)

    1 where the rate is 0 or 1 (there is no contrast to weigh, and the density may have a zero) and where all rates are
    equal. Beta(1, 1) gives REINFORCE with a baseline; Beta(3/2, 3/2) has density (8 / pi) sqrt(p (1 - p)), so that
    w (r - p) is pi / 8 times GRPO's advantage with the population's std. Made for binary rewards and advantages,
    centred and not scaled (`credit.scale: none`).

    Source: BNPO, arXiv 2506.02864, and its code.
    """
    mean, std = grouped.mean_and_std(rate, torch.zeros(len(rate), dtype=torch.int64), size > 1, 1)
    alpha, beta = _beta_normalizer(mean, std.square())
    # 1 at rates of 0 and 1, where the density may be 0; computed at 1/2 there, so that no nan appears
    mixed = (rate > 0) & (rate < 1)
    safe_rate = torch.where(mixed, rate.to(torch.float64), 0.5)
    scale = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    weight = (scale - (alpha - 1) * safe_rate.log() - (beta - 1) * (-safe_rate).log1p()).exp().clamp_max(max_density)
    return torch.where(mixed, weight, 1.0)


def _beta_normalizer(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """(alpha, beta), each at least 1, from the moments of the groups' success rates.

    A Beta(a, b) has these moments for a = k mean, b = k (1 - mean), k = mean (1 - mean) / variance - 1;
    alpha = 1 + a / 3, beta = 1 + b / 3. Without variance (1, 1), whose density is 1 everywhere.
    """
    # without a variance k would be infinite: equal rates say nothing of a distribution
    spread = variance > 0
    k = mean * (1 - mean) / torch.where(spread, variance, 1.0) - 1
    ends = [(1 + k * share / 3).clamp_min(1.0) for share in (mean, 1 - mean)]
    return torch.where(spread, ends[0], 1.0), torch.where(spread, ends[1], 1.0)


def difficulty_mix(
    rate: Tensor,
    size: Tensor,
    *,
    full: Annotated[float, Interval(gt=0, le=1)] = 1.0,
    easy: Literal["one_minus_root", "root_of_rest"] = "one_minus_root",
    eps: Annotated[float, Interval(ge=0)] = 1e-6,
) -> Tensor:
    """w = (1 - M) / (2 (d + eps)) + M / (2 (sqrt(rate) + eps)), times min(1, M / full) where A > 0: [G, 2].

    rate  share of the group's attempts that are correct; M its mean over groups with compared attempts (size > 0)
    full  accuracy M from which successes count in full
    easy  what d is: "one_minus_root" 1 - sqrt(rate), or "root_of_rest" sqrt(1 - rate), the mirror of sqrt(rate)

    The first term weighs easy groups up, the second hard ones. 1 where rate is 0 or 1: one term has a pole there, which
    in an advantage that is centred on the group multiplies 0.

    Source: A-GRAE, arXiv 2602.05548; its code has "one_minus_root".
    """
    # the weaker the policy, the more easy groups count; and successes count less until it is good enough
    accuracy = _mean(rate, size > 0)
    mixed = (rate > 0) & (rate < 1)
    safe_rate = torch.where(mixed, rate.to(torch.float64), 0.5)
    easiness_gap = 1 - safe_rate.sqrt() if easy == "one_minus_root" else (1 - safe_rate).sqrt()
    weight = (1 - accuracy) / (2 * (easiness_gap + eps)) + accuracy / (2 * (safe_rate.sqrt() + eps))
    weight = torch.where(mixed, weight, 1.0)
    return torch.stack([weight * (accuracy / full).clamp_max(1.0), weight], 1)


def difficulty_softmax(
    rate: Tensor,
    differ: Tensor,
    tokens: Tensor,
    *,
    temperature: Annotated[float, Gt(0)] = 2.0,
    over_differing: bool = True,
) -> Tensor:
    """w_q = S softmax_q(-rate_q / temperature) over the S groups that differ, 1 elsewhere (DGPO's DQW).

    rate    the share that succeeds; 0 counts as 1: such a group is thought too hard
    differ  bool: the group's outcomes are not all equal
    temperature     the smaller, the more the hardest task counts
    over_differing  further times tokens of the step / tokens of the groups that differ, so that a token mean is over
                    the latter: groups without advantage do not dilute the step

    Over the groups that differ the weights add up to S. Groups of equal rates, and a temperature that is large against
    1, give 1.

    Source: DGPO, arXiv 2601.20614, and its code (temperature 2).
    """
    if not bool(differ.any()):
        return torch.ones_like(rate)
    # a group that nobody solves is thought too hard, and counts as the easiest
    rate_G = torch.where(rate == 0, 1.0, rate.to(torch.float64))
    unnormalised = (-(rate_G - rate_G[differ].min()) / temperature).exp()
    weight = torch.where(differ, unnormalised / unnormalised[differ].mean(), 1.0)
    # a token mean divides by all tokens of the step: make up for those of groups that have no advantage
    trained = (tokens * differ).sum()
    return weight * (tokens.sum() / trained) if over_differing and trained > 0 else weight


def _hard_to_easy(hard_rate: float, easy_rate: float, **_: Any) -> str | None:
    return None if hard_rate < easy_rate else f"hard_rate ({hard_rate:g}) must be below easy_rate ({easy_rate:g})"


@checked_by(_hard_to_easy)
def ramp(
    mean: Tensor,
    size: Tensor,
    *,
    hard_rate: float = 1 / 3,
    easy_rate: float = 2 / 3,
    min_weight: Annotated[float, Interval(ge=0, le=1)] = 0.5,
) -> Tensor:
    """Linear ramp: 1 up to a mean of `hard_rate`, down to `min_weight` from `easy_rate` on (VITAL's DGRPO).

    size  compared trajectories; 1 without one

    A factor that all rewards of a group share is gone once they are divided by their standard deviation. As a weight it
    stays, whatever the advantage is; where nothing is scaled, it is the same as scaling the rewards.

    >>> ramp(torch.tensor([0.5, 1.0, 1.5, 2.0, 2.5]), torch.ones(5), hard_rate=1.0, easy_rate=2.0).tolist()
    [1.0, 1.0, 0.75, 0.5, 0.5]
    """
    weight = min_weight + (1.0 - min_weight) * ((easy_rate - mean.to(torch.float64)) / (easy_rate - hard_rate)).clamp(
        0.0, 1.0
    )
    return torch.where(size > 0, weight, 1.0)


def one_or(x: Tensor, *, otherwise: Annotated[float, Interval(ge=0)] = 0.1) -> Tensor:
    """1 where the statistic is true, else `otherwise`.

    With "long_pays" ADORA's rule for texts, which lets answers grow. Groups that are all right have 1 then, all wrong
    `otherwise`: only an advantage that is not centred shows it.
    """
    return torch.where(x > 0, torch.ones((), dtype=torch.float64), otherwise)


def over_share(x: Tensor, acting: Tensor) -> Tensor:
    """1 / share of acting trajectories whose group has the statistic, one value for the batch; 1 without such a group.

    With "credited" the mean over the step becomes one over the groups with credit. The unit is the trajectory: of a
    group with credit, those whose own credit happens to be 0 count, too. With groups of equal size, `sequence_mean` and
    a centred credit, the loss is that of the step without the groups of equal rewards.

    Source: GPG, arXiv 2504.02546 (alpha = B / (B - M)), and its code, which adds 1e-5 to the share.

    >>> over_share(torch.tensor([True, False]), torch.tensor([3, 2])).tolist()
    [1.6666666666666667, 1.6666666666666667]
    """
    acting_in_groups = float((acting * x).sum())
    return torch.full(
        (len(x),), float(acting.sum()) / acting_in_groups if acting_in_groups else 1.0, dtype=torch.float64
    )


def equal_groups(x: Tensor, size: Tensor) -> Tensor:
    """Mean size / size of the group, whatever the statistic is: each group weighs the same in a mean over trajectories.

    size  compared trajectories; groups without one have 1 and are not in the mean

    For groups of unequal sizes, as budgets that are allotted make them.

    >>> equal_groups(torch.zeros(3), torch.tensor([5, 5, 2])).tolist()
    [0.8, 0.8, 2.0]
    """
    n = size.to(torch.float64)
    return torch.where(size > 0, _mean(n, size > 0) / n.clamp_min(1.0), 1.0)


def damped(
    share: Tensor,
    *,
    alpha: Annotated[float, Interval(ge=0)] = 1.0,
    decay: Literal["linear", "exponential", "focal"] = "linear",
    power: Annotated[float, Gt(0)] = 2.0,
) -> Tensor:
    """w(x), x = alpha * share: "linear" 1 - x; "exponential" e^-x; "focal" (1 - x)^power. Never below 0 (SEED-GRPO).

    With "answer_entropy", at alpha 1 and "linear", a group in which no two answers agree is not trained at all.

    >>> damped(torch.tensor([0.0, 0.5, 1.2])).tolist()
    [1.0, 0.5, 0.0]
    """
    x = alpha * share.to(torch.float64)
    if decay == "exponential":
        return (-x).exp()
    remainder = (1.0 - x).clamp_min(0.0)
    return remainder**power if decay == "focal" else remainder


def hardness(
    dissimilarity: Tensor,
    of_attempts: Tensor,
    of_demonstrations: Tensor,
    *,
    unlike: Annotated[float, Interval(ge=0)] = 1.0,
    gap: Annotated[float, Interval(ge=0)] = 1.0,
    best: float = 1.0,
    outlier: Annotated[float, Gt(0)] = 2.0,
) -> Tensor:
    """w = (s(d) / s(mean d))^unlike (s(mean of the usual gaps) / s(mean gap))^gap, s the logistic function (DR-IRL).

    dissimilarity  d, nan unknown: 1 there
    unlike, gap    how much each counts; 1 and 1 in the paper
    best           what a demonstration earns where the group has none: the largest outcome there is
    outlier        a gap, what a demonstration earns more than an attempt, is usual up to so many standard deviations
                   (population) from the mean

    Means are over the step's groups. The second factor is one number for all of them: it is above 1 where the odd gaps
    were small ones.
    """
    # relative to the step's mean, so that the weights do not scale the whole loss
    is_known = dissimilarity.isfinite()
    mean_dissimilarity = _mean(dissimilarity.nan_to_num(0.0), is_known)
    unlikeness = torch.where(is_known, torch.sigmoid(dissimilarity) / torch.sigmoid(mean_dissimilarity), 1.0)
    gap_G = torch.where(of_demonstrations.isnan(), best, of_demonstrations) - of_attempts
    return unlikeness**unlike * _responsiveness(gap_G, outlier) ** gap


def _responsiveness(gap: Tensor, outlier: float = 2.0) -> float:
    """s(mean of the gaps that are no outliers) / s(mean of all), s the logistic function; 1 without a gap.

    gap      [n], nan: there is none
    outlier  how many standard deviations (population) from the mean a gap may be

    >>> round(_responsiveness(torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])), 6)
    0.923241
    """
    x = gap[gap.isfinite()].to(torch.float64)
    if not len(x):
        return 1.0
    # with a margin for rounding: equal gaps are no outliers
    is_usual = (x - x.mean()).abs() <= outlier * x.std(correction=0) * (1 + grouped.DEGENERATE)
    usual_mean = x[is_usual].mean() if bool(is_usual.any()) else x.mean()
    return float(torch.sigmoid(usual_mean) / torch.sigmoid(x.mean()))


def _mean(x: Tensor, where: Tensor) -> Tensor:
    """Mean over the groups that count, a float64 scalar; 0 without one."""
    return x[where].to(torch.float64).mean() if bool(where.any()) else torch.zeros((), dtype=torch.float64)
