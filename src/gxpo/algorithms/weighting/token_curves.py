"""Curves for `TokenWeight`: masks and factors as a function of a token or trajectory score, [n] float64."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.algorithms.weighting.curvature import predicted, within
from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of


# ---------------------------------------------------------------- subsets: top k of each unit, largest variance
def largest(score: Tensor, unit: Tensor, quota: Tensor, where: Tensor) -> Tensor:
    """Top `quota` members by score in each unit, [n] bool; ties (to 1e-12) go to the earlier member.

    score  [n];   unit  [n] int64, -1 = in none, and not kept
    quota  [n] the same for all of a unit
    where  [n] bool, which compete; the others are kept where they come up to the least that is kept of their unit

    >>> one = torch.zeros(4, dtype=torch.int64)
    >>> largest(torch.tensor([1.0, 3.0, 3.0, 2.0]), one, one + 2, one == 0).tolist()
    [False, True, True, False]
    """
    # ties are ties up to rounding, and go to the earlier member on every machine: settled values, stable sorts
    score = grouped.settled(score, unit)
    rows = (where & (unit >= 0)).nonzero().squeeze(1)
    order = rows[torch.argsort(score[rows], descending=True, stable=True)]
    order = order[torch.argsort(unit[order], stable=True)]
    ordered_unit = unit[order]
    begins = begins_of(ordered_unit, int(ordered_unit.max()) + 1 if len(ordered_unit) else 0)
    is_kept = torch.zeros(score.shape, dtype=torch.bool)
    is_kept[order] = torch.arange(len(order)) - begins[ordered_unit] < quota[order]
    # a member that does not compete takes no one's place, and is kept where it would have made it
    threshold = grouped.min(score, unit, is_kept)
    return is_kept | (~where & (grouped.count(unit, is_kept) > 0) & (score >= threshold))


@torch.no_grad()
def max_variance(x: Tensor, k: int, where: Tensor) -> Tensor:
    """Subset of `k` counting members whose values have the largest variance, [n] bool.

    The j smallest and the k - j largest for the best j (of equally good ones the smallest): variance is convex in each
    member. A member that does not count is kept where it is as extreme as one that is kept. k >= 1.

    >>> a = torch.tensor([1.5, 0.9, 0.2, -0.1, -0.8, -1.7])
    >>> a[max_variance(a, 4, a < 9)].tolist()
    [1.5, 0.8999999761581421, -0.800000011920929, -1.7000000476837158]
    """
    rows = where.nonzero().squeeze(1)
    n, k = len(rows), min(k, len(rows))
    if k == n:
        return torch.ones_like(where)
    x = grouped.settled(x, torch.zeros(x.shape, dtype=torch.int64))
    counted_x = x[rows]
    order = torch.argsort(counted_x, stable=True)
    values = counted_x[order]
    # prefix sums of centred values: the sum of squares about the mean of each choice of j smallest and k - j largest
    values, zero = values - values.mean(), values.new_zeros(1)
    total, square = torch.cat([zero, values.cumsum(0)]), torch.cat([zero, values.square().cumsum(0)])
    low = torch.arange(k + 1)
    high = n - (k - low)
    squares_about_mean = square[low] + square[n] - square[high] - (total[low] + total[n] - total[high]).square() / k
    # of equally good choices, up to rounding, the one with the fewest small members
    j = int((squares_about_mean >= squares_about_mean.max() - grouped.DEGENERATE * square[n]).nonzero()[0])
    is_kept = torch.zeros_like(where)
    is_kept[rows[order[:j]]] = True
    is_kept[rows[order[n - k + j :]]] = True
    # members that do not count follow the counting ones: kept beyond the innermost that is kept on either side
    is_extreme = torch.zeros_like(where)
    if j:
        is_extreme |= x <= x[rows[order[j - 1]]]
    if j < k:
        is_extreme |= x >= x[rows[order[n - k + j]]]
    return is_kept | (~where & is_extreme)


# ---------------------------------------------------------------- token curves
INF = float("inf")
Share = Annotated[float, Interval(gt=0, le=1)]
Factor = Annotated[float, Ge(0)]


# ---------------------------------------------------------------- masks
def above_quantile(x: Tensor, scope: Tensor, counts: Tensor, *, share: Share = 0.2) -> Tensor:
    """1 where the score is at least the (1 - share)-quantile of its scope, interpolated linearly; else 0.

    With entropy Wang et al., arXiv 2506.01939 (20 %, over the batch), and TRL's `top_entropy_quantile`.

    >>> one = torch.zeros(5, dtype=torch.int64)
    >>> above_quantile(torch.tensor([0.1, 2.0, 0.5, 0.05, 1.5]), one, one == 0).tolist()
    [0.0, 1.0, 0.0, 0.0, 0.0]
    """
    x = x.to(torch.float64)
    return (x >= grouped.quantile(x, scope, 1 - share, counts)).to(torch.float64)


def between(x: Tensor, *, low: float = -INF, high: float = INF) -> Tensor:
    """1 where low <= score <= high, else 0.

    By mean entropy up to ln 2, a choice between two equally likely words, GTPO's filter: arXiv 2508.03772 (code: 0.7).
    """
    return ((low <= x) & (x <= high)).to(torch.float64)


def at_maximum(x: Tensor, scope: Tensor) -> Tensor:
    """1 where the score is the largest of its scope, else 0.

    By version within a trajectory: of a rollout that goes on over several steps, the tokens of the last of them.

    >>> at_maximum(torch.tensor([3, 3, 4, 2]), torch.tensor([0, 0, 0, 1])).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    return (x.to(torch.float64) == grouped.max(x, scope)).to(torch.float64)


def plausible(
    x: Tensor, correct: Tensor, *, low: Annotated[float, Ge(1)] = 1.05, high: Annotated[float, Ge(1)] = 2.5
) -> Tensor:
    """1 for correct answers of perplexity <= high and for wrong ones of perplexity >= low, else 0.

    high  a correct answer that the reference finds stranger than this may have come out right by luck
    low   a wrong answer that it finds surer than this may have been judged wrongly

    Source: CAPO (calibration), arXiv 2604.12632.

    >>> plausible(torch.tensor([2.0, 3.0, 2.0, 1.01]), torch.tensor([1, 1, 0, 0]).bool()).tolist()
    [1.0, 0.0, 1.0, 0.0]
    """
    return torch.where(correct, x <= high, x >= low).to(torch.float64)


def informative(
    x: Tensor, complete: Tensor, tempered: Tensor, *, min_score: Factor = 0.05, min_tempered_score: Factor = 1.0
) -> Tensor:
    """1 where |score| exceeds `min_score` (of origin "tempered": `min_tempered_score`), unless it is a truncated
    answer's and above 0; else 0.

    By credit of trajectories EFRame's filter, arXiv 2506.22200, and its code. The credit that is kept of a group does
    not add up to 0: of twenty tempered attempts with up to nine right ones the right ones alone are kept, with ten
    nothing, with more the wrong ones.

    >>> yes, no = torch.tensor([True] * 4), torch.tensor([False] * 4)
    >>> x = torch.tensor([0.5, -0.5, 0.01, -2.0])
    >>> informative(x, yes, no).tolist(), informative(x, yes, yes).tolist(), informative(x, no, no).tolist()
    ([1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0])
    """
    is_informative = x.abs() > torch.where(tempered, min_tempered_score, min_score)
    return (is_informative & (complete | (x <= 0))).to(torch.float64)


def drop_median(x: Tensor, scope: Tensor, compared: Tensor) -> Tensor:
    """0 for the lower median of the scope's n compared members, n / (n - 1) for the others (MC-GRPO).

    Of equal members the first. Weights change no denominator, which n / (n - 1) makes up for: with groups of one size
    and a mean over trajectories, the loss is that of the n - 1 kept ones alone. 1: a group of one, members that are not
    compared, and those of no group. Terms that weights do not concern (KL, entropy) see the median rollout.

    Source: MC-GRPO, arXiv 2601.22582, and its code: G + 1 are sampled and G trained.

    >>> drop_median(torch.tensor([1.0, 0.5, 0.0]), torch.zeros(3, dtype=torch.int64), torch.ones(3).bool()).tolist()
    [1.5, 0.0, 1.5]
    """
    x, enters = x.to(torch.float64), (scope >= 0) & compared
    n = grouped.count(scope, enters)
    enters = enters & (n > 1)
    # of several at the median the first; a lower median is a member's own value, so equality is exact
    at_median = enters & (x == grouped.median(x, scope, enters, lower=True))
    place = torch.arange(len(x), dtype=torch.float64)
    is_dropped = at_median & (place == grouped.min(place, scope, at_median))
    return torch.where(is_dropped, 0.0, torch.where(enters, n / (n - 1).clamp_min(1), 1.0))


def largest_size(
    x: Tensor, scope: Tensor, counts: Tensor, *, prune: Annotated[float, Interval(ge=0, lt=1)] = 0.5
) -> Tensor:
    """n / k for the k = max(1, int(n (1 - prune))) of the scope's n members whose |score| is largest, else 0 (CPPO).

    Weights change no denominator, which n / k makes up for: by mean credit, with one scope and a mean over
    trajectories, the loss is that of the kept ones alone. Who does not count is kept where it comes up to the least
    that is kept. Rollouts that are not trained cost no forward pass with gradient.

    Source: CPPO, arXiv 2503.22342: scope "group" is the paper's, "batch" its code for verl.

    >>> a = torch.tensor([1.0, -1.0, 0.2, -0.2, 0.577, 0.577, 0.577, -1.732])
    >>> largest_size(a, torch.zeros(8, dtype=torch.int64), torch.ones(8).bool()).nonzero().squeeze(1).tolist()
    [0, 1, 4, 7]
    """
    n = grouped.count(scope, counts)
    # the margin: 10 * (1 - 0.9) is just below 1
    quota = ((n * (1 - prune) + 1e-9).floor()).clamp_min(1)
    is_kept = largest(x.abs().to(torch.float64), scope, quota.long(), counts)
    share = n / torch.minimum(quota, n).clamp_min(1)
    return torch.where(n > 0, torch.where(is_kept, share, 0.0), 1.0)


def top_scaled(
    x: Tensor,
    trajectory: Tensor,
    compared: Tensor,
    *,
    share: Share = 0.4,
    min_scale: Annotated[float, Interval(ge=0, le=1)] = 0.9,
) -> Tensor:
    """The ceil(share * length) tokens of largest score of each trajectory, scaled by its mean score; else 0 (VPPO).

    share  of equal ones the earlier are kept; the loss shrinks with it
    min_scale  scale of the trajectory of smallest mean: min_scale + (1 - min_scale) u / mean u, u the mean score
           brought to [0, 1] by the extremes of compared trajectories; their mean scale is 1, or all if they are equal

    By "dependency" on what the policy was shown. The paper scales the credit: with a surrogate that is linear in it, as
    clips are, weighting the loss is the same. Source: VPPO, arXiv 2510.09285, and its code.
    """
    one_group, length = torch.zeros_like(trajectory), grouped.count(trajectory)
    mean = grouped.mean(x, trajectory)
    low, high, flat = (f(mean, one_group, compared) for f in (grouped.min, grouped.max, grouped.degenerate))
    unit = ((mean - low) / torch.where(flat, 1.0, high - low)).clamp(0.0, 1.0)
    # each trajectory counts once in the mean, whatever its length
    mean_unit = grouped.mean(unit, one_group, compared, weight=1.0 / length)
    scale = torch.where(flat, 1.0, min_scale + (1 - min_scale) * unit / torch.where(flat, 1.0, mean_unit))
    is_kept = largest(x, trajectory, (share * length - 1e-9).ceil(), torch.ones_like(compared))
    return is_kept * scale


def curvature(
    x: Tensor,
    proximal_logprob: Tensor,
    state_norm: Tensor,
    compared: Tensor,
    *,
    lr: Annotated[float, Gt(0)] = 1e-6,
    reject: Annotated[float, Interval(ge=0, lt=1)] = 0.08,
    max_gain: Annotated[float, Gt(0)] | None = None,
    max_shift: Annotated[float, Gt(0)] | None = None,
) -> Tensor:
    """1 where the predicted effect of the token's own update is `within` the bounds, else 0 (CAPO); x the advantage.

    lr      learning rate that the prediction is made for; the update's
    reject  largest share of the tokens that is dropped
    max_gain, max_shift  in the place of `reject`: kept is |m_H| < max_gain and m_F < max_shift, as in the authors' code

    For `sign` "nonzero": bounds are over the compared tokens with an advantage. What is left out stays in the
    denominators.

    Source: CAPO, arXiv 2510.00819, and its code: fixed thresholds there, tuned to reject fewer than 8 % of tokens.
    """
    # rounding may bring a log-prob above 0; fixed thresholds replace the quantile bounds altogether
    gain, shift = predicted(proximal_logprob.clamp_max(0.0).exp(), state_norm, x, lr)
    if max_gain is None and max_shift is None:
        return within(gain, shift, compared, reject).to(torch.float64)
    most_gain, most_shift = (INF if bound is None else bound for bound in (max_gain, max_shift))
    return ((gain.abs() < most_gain) & (shift < most_shift)).to(torch.float64)


def down_sampling(
    x: Tensor,
    entropy: Tensor,
    columns: Any,
    *,
    rows: Share = 0.5,
    rows_end: Share = 1.0,
    tokens: Share = 0.5,
    tokens_end: Share = 1.0,
    total_steps: Annotated[int, Ge(1)] | None = None,
) -> Tensor:
    """Rollouts by `max_variance` of their mean score over the step, and their tokens of largest |score| H (D3S).

    rows, tokens          shares kept at the start, each rounded up
    rows_end, tokens_end  shares kept at step `total_steps` and after; in between a straight line
    total_steps           None: the run's; outside a run the shares are those of the start

    By "credit". Kept rollouts weigh M / N, so that a mean over trajectories is over the kept ones; dropped tokens stay
    in the denominators. H is the entropy of the policy at the start of the step. Credit is not normalised again: that
    of the kept ones has no mean of 0. Trajectories that are not compared do not compete.

    Source: D3S, arXiv 2509.22115, from a summary: rollouts of the whole step compete, not those of a group.
    """
    counted_R, owner = columns.of("acts", "R"), columns.owner
    n = int(counted_R.sum())
    if not n:
        return torch.ones(x.shape, dtype=torch.float64)
    # rollouts first: the share of the step's that are kept, on the schedule's line
    progress = 0.0 if total_steps is None else min(max(columns.step / total_steps, 0.0), 1.0)
    k = math.ceil(((1 - progress) * rows + progress * rows_end) * n - 1e-9)
    is_kept_R = max_variance(columns.mean(x), k, counted_R)
    # then tokens, among those of the kept rollouts, over the whole step at once
    competes = (is_kept_R & counted_R)[owner]
    token_share = (1 - progress) * tokens + progress * tokens_end
    quota = torch.full_like(owner, math.ceil(token_share * int(competes.sum()) - 1e-9))
    is_chosen = largest(x.abs() * entropy.to(torch.float64), torch.zeros_like(quota), quota, competes)
    return (is_chosen & is_kept_R[owner]).to(torch.float64) * n / k


# ---------------------------------------------------------------- factors
def shared_affix(
    x: Tensor,
    token: Tensor,
    trajectory: Tensor,
    group: Tensor,
    compared: Tensor,
    *,
    gain: Annotated[float, Ge(1)] = 2.0,
) -> Tensor:
    """Prefixes and suffixes that a group's answers share (GTPO): `gain` under a positive score, 0 under a negative one.

    gain  1 or more; squared for a token in both

    By "credit", which keeps negative advantages from unlearning what correct and wrong answers share: markup, openings.
    Tokens are compared by id, at the same position among the trainable tokens of an answer, with those of the group's
    compared answers; an advantage of 0 is on neither side and has weight 1.

    Source: GTPO, arXiv 2508.03772, and its code.
    """
    first, last = _affix_runs(token, trajectory, group, x, compared & (token >= 0))
    raised = gain ** (first.to(torch.float64) + last.to(torch.float64))
    return torch.where(x > 0, raised, torch.where((x < 0) & (first | last), 0.0, 1.0))


def _contested(token: Tensor, place: Tensor, group: Tensor, sign: Tensor, counts: Tensor) -> Tensor:
    """Tokens that occur in one position with positive and with negative advantage in the group, [n] bool.

    token, place, group  [n] int64;   sign [n] of the advantage;   counts [n] bool, which tokens are compared
    """
    if not len(token):
        return counts
    # one number for each (group, position, token)
    cell = torch.stack([group, place, token]).unique(dim=1, return_inverse=True)[1]
    n = int(cell.max()) + 1
    has_positive, has_negative = (torch.zeros(n, dtype=torch.bool) for _ in range(2))
    has_positive[cell[counts & (sign > 0)]] = True
    has_negative[cell[counts & (sign < 0)]] = True
    return (has_positive & has_negative)[cell]


def _affix_runs(
    token: Tensor, trajectory: Tensor, group: Tensor, sign: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens in the prefix, and tokens in the suffix, that a group's sides share: runs of `_contested`, [n] bool each.

    trajectory  [n] int64, by trajectory, then time; places are counted from the start, and for the run at the end from
                the end, so that answers of unequal length are aligned there
    group       [n] int64, of each token's trajectory
    """
    n = int(trajectory.max()) + 1 if len(trajectory) else 0
    begins = begins_of(trajectory, n)
    position = torch.arange(len(token))
    runs = []
    for place in (position - begins[trajectory], begins[1:][trajectory] - 1 - position):
        is_break = ~_contested(token, place, group, sign, counts)
        # a token is in the run at an end if no token between it and that end breaks it
        breaks_before = torch.cat([torch.zeros(1, dtype=torch.int64), is_break.long().cumsum(0)])
        runs.append(
            (
                breaks_before[position + 1] - breaks_before[begins[trajectory]],
                breaks_before[begins[1:][trajectory]] - breaks_before[position],
            )
        )
    return runs[0][0] == 0, runs[1][1] == 0


def by_sign(x: Tensor, *, positive: Factor = 1.0, negative: Factor = 1.0) -> Tensor:
    """`positive` where the score is above 0, `negative` where it is below, 1 where it is 0.

    By advantage W-REINFORCE, arXiv 2506.01347, which weighs positive samples by 0.1; 0 leaves one side out.

    >>> by_sign(torch.tensor([2.0, -1.0, 0.0]), positive=0.1).tolist()
    [0.1, 1.0, 1.0]
    """
    one = torch.ones(x.shape, dtype=torch.float64)
    return torch.where(x > 0, positive * one, torch.where(x < 0, negative * one, one))


def exponential(
    x: Tensor, *, temperature: Annotated[float, Gt(0)] = 1.0, max_weight: Annotated[float, Gt(0)] = 100.0
) -> Tensor:
    """min(e^(score / temperature), max_weight); of the advantage, it multiplies a loss that already has it as a factor.

    temperature  in units of the score: the lower, the more the best count
    max_weight   bound of the weight, ours: an advantage of many standard deviations would be all

    Source: REC, arXiv 2509.24203 (RED-Weight).

    >>> exponential(torch.tensor([0.0, 1.0, -1.0, 9.0]), temperature=0.5).round(decimals=6).tolist()
    [1.0, 7.389056, 0.135335, 100.0]
    """
    return (x.to(torch.float64) / temperature).exp().clamp_max(max_weight)


def raised(x: Tensor, credit: Tensor, *, alpha: Annotated[float, Interval(ge=0, le=1)] = 0.2) -> Tensor:
    """1 + alpha sign(A) where the score is above 0, else 1; there w A = A + alpha |A|.

    Credits of a group no longer add up to 0: marked tokens are pushed on the whole. By label HICRA, arXiv 2509.03646.

    >>> raised(torch.tensor([1, 1, 0]), torch.tensor([0.5, -0.5, 0.5])).tolist()
    [1.2, 0.8, 1.0]
    """
    return 1 + alpha * torch.where(x > 0, credit.to(torch.float64).sign(), 0.0)


def bonus(x: Tensor, credit: Tensor, *, strength: float = 1.0, bound: Factor = 0.5) -> Tensor:
    """1 + clip(strength score / A, -bound, bound), 1 where the advantage A is 0.

    So w A = A + clip(b, -bound |A|, bound |A|): a bonus b = strength * score on the advantage itself, after all
    normalisation, that with bound < 1 never turns its sign; with a surrogate that is linear in the credit, as clips
    are, weighting the loss is the same.

    By "rarity" XRPO, arXiv 2510.06672 (2.5 and 0.5, of positive credit); by "lateness" ASPO, arXiv 2508.19201, eq. 2
    (-2 and 0.7: earlier is better).

    >>> bonus(torch.tensor([0.16, 0.0]), torch.tensor([1.0, 1.0]), strength=2.5).round(decimals=6).tolist()
    [1.4, 1.0]
    """
    advantage = credit.to(torch.float64)
    relative = strength * x.to(torch.float64) / torch.where(advantage != 0, advantage, 1.0)
    return 1.0 + torch.where(advantage != 0, relative.clamp(-bound, bound), 0.0)


def relative_entropy(
    x: Tensor,
    scope: Tensor,
    counts: Tensor,
    *,
    min_weight: Annotated[float, Interval(ge=0, le=1)] = 0.1,
    max_weight: Annotated[float, Ge(1)] = 10.0,
) -> Tensor:
    """Mean score of the scope / score, clipped to [min_weight, max_weight] (EDGE-GRPO: confident answers count more).

    min_weight, max_weight  0 and .inf: none, and an answer without any entropy is an error

    1 where the score is the mean (to 1e-5 nats), also at 0, and where none counts. Source: arXiv 2507.21848.

    >>> one = torch.zeros(3, dtype=torch.int64)
    >>> relative_entropy(torch.tensor([0.25, 0.5, 0.75]), one, one == 0).tolist()
    [2.0, 1.0, 0.6666666666666666]
    """
    entropy = x.to(torch.float64).clamp_min(0.0)
    mean = grouped.mean(entropy, scope, counts)
    # within the error of two forward passes of the mean: otherwise 0 / 0, or noise over noise
    is_mean = ((entropy - mean).abs() <= grouped.FORWARD) | (grouped.count(scope, counts) == 0)
    return torch.where(is_mean, 1.0, mean / torch.where(is_mean, 1.0, entropy)).clamp(min_weight, max_weight)


def stretched(x: Tensor, scope: Tensor, counts: Tensor, *, alpha: Factor = 1.4) -> Tensor:
    """Min-max scaling to [1, alpha]: 1 + (alpha - 1) (x - min) / (max - min) within the scope (TW-GRPO).

    A member that does not count is clipped to the extremes of those that do. 1 where those are equal or none counts.
    Source: arXiv 2505.24718.

    >>> one = torch.zeros(3, dtype=torch.int64)
    >>> stretched(torch.tensor([0.0, 1.0, 4.0]), one, one == 0, alpha=3.0).tolist()
    [1.0, 1.5, 3.0]
    """
    low, high = grouped.min(x, scope, counts), grouped.max(x, scope, counts)
    flat = grouped.degenerate(x, scope, counts)
    unit = ((x.to(torch.float64) - low) / torch.where(flat, 1.0, high - low)).clamp(0.0, 1.0)
    return torch.where(flat, 1.0, 1.0 + (alpha - 1.0) * unit)


def u_shape(x: Tensor, *, strength: Factor = 0.3) -> Tensor:
    """1 + strength (2 t - 1)^2 for t in [0, 1]: of "position", the beginning and the end count more.

    The mean weight of a long trajectory is 1 + strength / 3; it is not divided out. Source: AVATAR's temporal advantage
    shaping, arXiv 2508.03100 (0.3).

    >>> u_shape(torch.linspace(0, 1, 5, dtype=torch.float64)).tolist()
    [1.3, 1.075, 1.0, 1.075, 1.3]
    """
    return 1 + strength * (2 * x - 1).square()


def equal_values(x: Tensor, scope: Tensor, counts: Tensor) -> Tensor:
    """Weight by which all values of the score count alike in the scope, however many tokens have each; 1 on average.

    By "segment" in a trajectory: Chunk-GRPO, arXiv 2510.21583. By "unmasked_at": CJ-GRPO, arXiv 2509.23924.
    >>> equal_values(torch.tensor([0, 0, 1]), torch.zeros(3).long(), torch.ones(3).bool()).tolist()
    [0.75, 0.75, 1.5]
    """
    value = grouped.dense(scope * (int(x.max()) + 2) + x.to(torch.int64) + 1) if len(x) else scope
    share = torch.where(counts, 1 / grouped.count(value, counts).clamp_min(1), 0.0)
    return torch.where(counts, share * grouped.count(scope, counts) / grouped.sum(share, scope, counts), 1.0)


def over_mean(x: Tensor, segment: Tensor) -> Tensor:
    """Score divided by its mean over the segments, each counted once; 1 where there is none.

    By "noise_scale", the standard deviation of the noise that a denoising step adds, whose segments are the steps:
    summed over the trained steps the weights give their number, so the size of an update does not depend on the noise
    level or on the sampler's schedule.

    Source: TempFlow-GRPO, arXiv 2508.04324. Its code multiplies by 2.25, which is this mean's inverse for 10 steps of
    its schedule at level 0.7, and for no other.
    """
    has_segment = segment >= 0
    per_segment = torch.where(has_segment, 1 / grouped.count(segment, has_segment).clamp_min(1), 0.0)
    mean = grouped.mean(x, torch.zeros_like(segment), weight=per_segment)
    return torch.where(has_segment & (mean > 0), x.to(torch.float64) / torch.where(mean > 0, mean, 1.0), 1.0)
