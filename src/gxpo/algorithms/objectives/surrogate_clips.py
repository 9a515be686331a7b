"""Variants of the PPO clip: adaptive widths (ETR, HAPO), Clip-Cov, FIPO, GPPO, two levels (DHPO, FiberPO)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.objectives.ratio_trajectory import run_positions, run_recursion
from gxpo.algorithms.objectives.sequence_score import per_trajectory
from gxpo.algorithms.objectives.surrogate import (
    AboveOne,
    DualClip,
    Entries,
    Positive,
    Share,
    Width,
    beyond,
    clip_loss,
    hold,
    ratio_of,
    sequence_ratio,
)
from gxpo.forest import grouped
from gxpo.parts.functions import UNBOUNDED, checked_by
from gxpo.parts.registry import part

Fraction = Annotated[float, Interval(ge=0, le=1)]


# ---------------------------------------------------------------- widths by the advantage
def binary_variance(credit: Tensor) -> Tensor:
    """Reward variance 4 p (1 - p) of a group, in [0, 1], from the z-scored advantage of a right or wrong answer.

    With population std a right answer has A = sqrt((1 - p) / p), a wrong one -sqrt(p / (1 - p)), so either tells
    4 p (1 - p) = 4 A^2 / (1 + A^2)^2. With one degree of freedom A is sqrt((G - 1) / G) of that.

    >>> of_p_half_and_tenth = torch.tensor([1.0, -1.0, 3.0], dtype=torch.float64)
    >>> binary_variance(of_p_half_and_tenth).round(decimals=6).tolist()
    [1.0, 1.0, 0.36]
    """
    return (2.0 * credit / (1.0 + credit.square())).square()


@part("elastic_clip", stage="surrogate")
def elastic_clip(
    x: Entries,
    *,
    clip_low: Width = 0.2,
    clip_high: Width = 0.2,
    elastic_credit: Width = 0.5,
    elastic_variance: Width = 0.5,
) -> tuple[Tensor, Tensor]:
    """PPO clip whose range widens with the size of the advantage (ETR).

    Both widths are times (1 + elastic_credit tanh |A|) (1 + elastic_variance 4 p (1 - p)) of the token.

    clip_low, clip_high  widths at advantage 0
    elastic_credit       how much an advantage of great magnitude widens them
    elastic_variance     how much a group of mixed verdicts widens them; p is that of the advantage (`binary_variance`),
                         so this is for z-scored advantages of right and wrong answers

    In a binary group the two partly oppose: |A| is greatest where p is extreme, the variance at p = 1/2. With both at
    0 this is `Clip`. A reconstruction of ETR, arXiv 2601.03723, from its abstract.
    """
    # both factors are at least 1: the configured widths are the narrowest
    wider = (1.0 + elastic_credit * x.credit.abs().tanh()) * (1.0 + elastic_variance * binary_variance(x.credit))
    return clip_loss(x, 1 - clip_low * wider, 1 + clip_high * wider)


# ---------------------------------------------------------------- widths by the entropy
@torch.no_grad()
def entropy_score(entropy: Tensor, quantile: float = 0.8) -> Tensor:
    """Entropy score in [-1, 1], [n] float64: how far a token's log-entropy lies from a quantile of all.

    log H - Q(log H), over its largest value above 0, and over the magnitude of its smallest below; log H of at least
    1e-8 nats. Q is a token's own value, the nearest to the quantile, so that one token at least has h = 0. (Dividing by
    a standard deviation before would change nothing.)
    """
    log = entropy.to(torch.float64).clamp_min(1e-8).log()
    one_group = torch.zeros(log.shape, dtype=torch.int64)
    # the nearest member, not an interpolation, so that one token at least is exactly at the quantile
    gap = log - grouped.quantile(log, one_group, quantile, interpolation="nearest")
    gap = torch.where(gap.abs() <= 1e-12 * log.abs(), 0.0, gap)
    # each side is scaled by its own extreme: both -1 and 1 are reached, however skewed the entropies are
    top, bottom = grouped.max(gap, one_group).clamp_min(0), -grouped.min(gap, one_group).clamp_max(0)
    size = torch.where(gap > 0, top, bottom)
    return gap / torch.where(size > 0, size, 1.0)


@part("entropy_adaptive_clip", stage="surrogate", couples="step", outputs=("entropy",))
def entropy_adaptive_clip(
    x: Entries,
    *,
    clip_low: Width = 0.2,
    clip_high: Width = 0.2,
    ratio_max: AboveOne = 10.0,
    entropy_quantile: Fraction = 0.8,
    clip_gain: Width = 1.0,
    credit_gain: Fraction = 1.0,
) -> tuple[Tensor, Tensor]:
    """Entropy-adaptive dual clip (HAPO): widths and advantages follow each token's `entropy_score` h.

    h is detached, over the optimiser step.

    low = clip_low (1 - clip_gain min(h, 0)),  high = clip_high (1 + clip_gain max(h, 0)): tokens of low entropy may
    become less likely by more, those of high entropy likelier by more. The advantage is times 1 + credit_gain h where
    h > 0 and rho is outside (1 - low / 2, 1 + high / 2), and where h <= 0 and rho is inside.

    clip_low, clip_high, ratio_max  as in `DualClip`
    entropy_quantile  of the tokens' log-entropies, where h is 0
    clip_gain, credit_gain  0 and 0: `DualClip`; credit_gain up to 1, so that no advantage changes its sign

    Source: HAPO, arXiv 2509.16591, and its code.
    """
    # detached: the clip follows the entropy, the loss must not move it
    assert x.entropy is not None
    score = entropy_score(x.entropy.detach(), entropy_quantile).to(x.credit)
    # certain tokens may fall further, undecided ones may rise further
    low = 1 - clip_low * (1 - clip_gain * score.clamp_max(0))
    high = 1 + clip_high * (1 + clip_gain * score.clamp_min(0))
    # half of each width is the border between a small and a large move
    inside = (x.ratio > (1 + low) / 2) & (x.ratio < (1 + high) / 2)
    factor = torch.where(inside == (score <= 0), 1 + credit_gain * score, torch.ones_like(score))
    return clip_loss(x, low, high, ratio_max, factor)


# ---------------------------------------------------------------- tokens of great covariance
_MIX = -7046029254386353131  # 2^64 / golden ratio, odd, as int64


@torch.no_grad()
def covariance(logprob: Tensor, credit: Tensor) -> Tensor:
    """Covariance of advantage and log-prob by token, [n] float64: (A - mean A)(log pi - mean log pi), means over all.

    >>> covariance(torch.tensor([-0.2, -1.1, -2.4, -0.1, -0.2]), torch.tensor([1.0, 1, -1, -1, -1])).round(decimals=2)
    tensor([ 0.7200, -0.3600,  1.2800, -0.5600, -0.4800], dtype=torch.float64)
    """
    logprob, credit = logprob.to(torch.float64), credit.to(torch.float64)
    return (credit - credit.mean()) * (logprob - logprob.mean())


@torch.no_grad()
def token_hash(x: Entries, seed: int) -> Tensor:
    """Pseudo-random number of each token, [n] int64: a hash of the token's own columns.

    Made of the seed, the token's place in its trajectory, its advantage and the log-prob below its ratio (to 1/4096):
    not of the order of trajectories, nor of the micro-batches, and constant over the updates of a step.
    """
    # keyed by the token's own columns and its place, so that no micro-batch or order of rows changes who is drawn
    hash_n = torch.full(x.credit.shape, seed, dtype=torch.int64)
    for column in (run_positions(x.trajectory), *((c.double() * 4096).round().long() for c in (x.credit, x.below))):
        hash_n = (hash_n ^ column) * _MIX
        hash_n = hash_n ^ (hash_n >> 29)
    return hash_n * _MIX


def quota(share: float, n: int) -> int:
    """Number of tokens in a share of n: rounded down, at least 1."""
    return max(1, int(share * n))


def _window(covariance_low: float, covariance_high: float, **_: object) -> str | None:
    if covariance_low < covariance_high:
        return None
    return f"covariance_low ({covariance_low}) must be below covariance_high ({covariance_high})"


@part("covariance_clip", stage="surrogate", couples="step")
@checked_by(_window)
def covariance_clip(
    x: Entries,
    *,
    clip_low: Width = 0.2,
    clip_high: Width = 0.2,
    covariance_share: Share = 2e-4,
    covariance_low: float = 1.0,
    covariance_high: float = 5.0,
    draw_seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Clip-Cov: `Clip`, and no loss for a few tokens drawn among those of high `covariance`.

    covariance_share   k = max(1, share of the step's trained tokens) of them are dropped; they stay in denominators
    covariance_low, covariance_high  tokens whose covariance lies between these, and that the clip does not cut, can be
                       drawn
    draw_seed          of the draw (`token_hash`); the k smallest numbers are taken

    All trained tokens of the optimiser step are one set, whatever the micro-batches.

    Source: arXiv 2505.22617, as in verl, where the set is a micro-batch.
    """
    loss, cut = clip_loss(x, 1 - clip_low, 1 + clip_high)
    covariance_n = covariance(x.logprob, x.credit)
    # a token that the clip cuts anyway would use up the quota without an effect
    candidates = ((covariance_n > covariance_low) & (covariance_n < covariance_high) & ~cut).nonzero().squeeze(1)
    order = torch.argsort(token_hash(x, draw_seed)[candidates], stable=True)
    dropped = torch.zeros_like(cut)
    dropped[candidates[order[: quota(covariance_share, len(cut))]]] = True
    return torch.where(dropped, torch.zeros_like(loss), loss), cut | dropped


# ---------------------------------------------------------------- a factor by the rest of the trajectory
@torch.no_grad()
def future_drift(log_ratio: Tensor, trajectory: Tensor, half_life: float, ratio_max: float) -> Tensor:
    """Discounted sum of future log-ratios, [n] float64: F_t = sum_{k >= t} 2^(-(k - t) / half_life) log rho_k.

    The sum runs over the rest of the trajectory. Tokens whose ratio exceeds `ratio_max` count as 0.
    """
    summands = torch.where(log_ratio > math.log(ratio_max), 0.0, log_ratio.to(torch.float64))
    return run_recursion(summands, 2.0 ** (-1.0 / half_life), trajectory, reverse=True)


@part("future_drift", stage="surrogate")
@dataclass(frozen=True)
class FutureDrift(DualClip):
    """Dual clip times a factor of future log-ratios (FIPO): f_t = clip(exp(F_t), factor_low, factor_high).

    f_t is detached, F_t = `future_drift` of the log-ratios.

    clip_low, clip_high, ratio_max  as in `DualClip`; `ratio_max` also says which tokens are left out of F
    half_life    tokens after which a log-ratio counts half
    factor_low, factor_high  bounds of f, absolute; 1 and 1.2: it only amplifies
    safe_ratio   where A < 0 and rho exceeds it, f is held in [0.8, 1]
    dual_clipped_max  tokens beyond `ratio_max` where A < 0 that a trajectory may have: one with more is dropped, from
                 the denominator too. None: never, and then only trajectories are coupled

    On policy F = 0 and f = 1: it takes several updates a step to act.

    Source: FIPO, arXiv 2603.19835, and its code.
    """

    ratio_max: AboveOne = 10.0
    half_life: Positive = 32.0
    factor_low: Share = 1.0
    factor_high: Annotated[float, Ge(1)] = 1.2
    safe_ratio: Positive = 10.0
    dual_clipped_max: Annotated[int, Ge(0)] | None = 1

    beside = "trajectory"

    def __post_init__(self) -> None:
        object.__setattr__(self, "couples", "trajectory" if self.dual_clipped_max is None else "step")

    @torch.no_grad()
    def factor(self, x: Entries) -> Tensor:
        """Factor f_t of each token, [n], detached."""
        # bounded before the exponential too, which could overflow
        drift = future_drift(x.log_ratio, x.trajectory, self.half_life, self.ratio_max)
        factor = drift.clamp_max(math.log(self.factor_high) + 1.0).exp().clamp(self.factor_low, self.factor_high)
        # a token that is punished although it has become likely must not be punished harder
        unsafe = (x.credit < 0) & (x.ratio > self.safe_ratio)
        return torch.where(unsafe, factor.clamp(0.8, 1.0), factor).to(x.credit)

    def loss(self, x: Entries) -> Tensor:
        return clip_loss(x, *self.bounds(x), self.ratio_max, self.factor(x))[0]

    @torch.no_grad()
    def left_out(self, x: Entries) -> Tensor | None:
        if self.dual_clipped_max is None:
            return None
        dual_clipped = ((x.credit < 0) & (x.ratio > self.ratio_max)).to(torch.float64)
        return grouped.sum(dual_clipped, x.trajectory) > self.dual_clipped_max

    def metrics(self, x: Entries) -> dict[str, float]:
        """Metrics of the factor and of dropped trajectories.

        future_factor  mean of f over the active entries
        dual_clip_dropped  of the active entries, those in trajectories that are dropped
        """
        left_out_n, figures = self.left_out(x), {"future_factor": float(self.factor(x).mean())}
        return figures if left_out_n is None else figures | {"dual_clip_dropped": float(left_out_n.double().mean())}


# ---------------------------------------------------------------- gradients beyond the bounds
@part("preserving_clip", stage="surrogate")
def preserving_clip(
    x: Entries,
    *,
    clip_low: Width = 0.2,
    clip_high: Width = 0.2,
    slope_low: Width = 1.0,
    slope_high: Width = 1.0,
    ratio_max: Annotated[AboveOne, UNBOUNDED] = 3.0,
) -> tuple[Tensor, Tensor]:
    """Gradient-preserving clip (GPPO): a bound b that clips a token is b rho / stop(rho), so its gradient is -A b.

    The value is that of `Clip`.

    slope_low, slope_high  factors on the lower and on the upper bound, value and gradient; 0: cut, as in `Clip`
    ratio_max              absolute: as in `DualClip`, no gradient for A < 0 beyond it; inf: no such bound

    Which entries are held is decided by `Clip`, before any factor. Counted as clipped: tokens whose gradient is smaller
    than that of -A rho; below the lower bound it may be greater. Source: GPPO, arXiv 2508.07629, and its code (both
    1, ratio_max 3); CE-GPPO, arXiv 2509.20712 (slope_low at most slope_high, such as 0.75 and 1).
    """
    # who is clipped follows PPO's bounds alone, whatever slopes are configured
    is_clipped = beyond(x.ratio, x.credit, 1 - clip_low, 1 + clip_high)
    bound = x.by_sign(slope_high * (1 + clip_high), slope_low * (1 - clip_low))
    unit_ratio = 1 + (x.log_level - x.log_level.detach())  # rho / stop(rho), in value and slope, whatever rho is
    clipped_ratio = torch.where(is_clipped, bound * unit_ratio, x.ratio)
    loss = -x.credit * torch.where(x.credit < 0, clipped_ratio.clamp_max(ratio_max), clipped_ratio)
    return loss, (is_clipped & (bound < x.ratio)) | ((x.credit < 0) & (x.ratio > ratio_max))


# ---------------------------------------------------------------- token and sequence, each held
@torch.no_grad()
def relative_entropy(entropy: Tensor, trajectory: Tensor) -> Tensor:
    """Entropy of a token between its trajectory's extremes, in [0, 1], [n] float64; 1/2 where all are equal.

    >>> relative_entropy(torch.tensor([1.0, 3.0, 2.0, 0.7]), torch.tensor([0, 0, 0, 1])).tolist()
    [0.0, 1.0, 0.5, 0.5]
    """
    low, high = grouped.min(entropy, trajectory), grouped.max(entropy, trajectory)
    flat = grouped.degenerate(entropy, trajectory)
    return torch.where(flat, 0.5, (entropy.to(torch.float64) - low) / torch.where(flat, 1.0, high - low))


def _mixing_reads(mixing: str, **_: object) -> tuple[str, ...]:
    return ("entropy",) if mixing == "entropy" else ()


@part("hybrid_clip", stage="surrogate", couples="trajectory", outputs=_mixing_reads)
def hybrid_clip(
    x: Entries,
    *,
    clip_low: Width = 0.2,
    clip_high: Width = 0.2,
    sequence_clip_low: Width = 3e-4,
    sequence_clip_high: Width = 4e-4,
    mixing: Literal["average", "entropy"] = "average",
    token_share: Fraction = 0.5,
    sides: Literal["both", "improving"] = "both",
) -> tuple[Tensor, Tensor]:
    """Mix of clipped token and sequence ratio (DHPO): -A (w hold(rho_t) + (1 - w) hold(s_t)), s of `sequence_ratio`.

    clip_low, clip_high    of the token's ratio, relative to 1
    sequence_clip_low, sequence_clip_high  of the sequence's
    mixing       "average": w = token_share; "entropy": w = `relative_entropy` of the current policy, detached, so that
                 uncertain tokens follow their own ratio
    token_share  1: token ratios alone, 0: the sequence ratio alone
    sides        "both": each ratio is held on both sides, whatever the advantage's sign; "improving": on the side that
                 would go on improving, as in `Clip`: then token_share 1 is GRPO's loss and 0 is GSPO's

    Reads the tokens' own log-ratios: `objective.ratio` plays no part. Source: DHPO, arXiv 2601.05607.
    """
    # share: of the token's own ratio in the mixture, the rest is the sequence's
    share = torch.full_like(x.credit, token_share)
    if mixing == "entropy":
        assert x.entropy is not None
        share = relative_entropy(x.entropy.detach(), x.trajectory).to(x.credit)

    def clip_ratio(log_ratio: Tensor, lower: float, high: float) -> tuple[Tensor, Tensor]:
        ratio = ratio_of(log_ratio)
        if sides == "improving":
            return hold(ratio, x.credit, lower, high), beyond(ratio, x.credit, lower, high)
        return ratio.clamp(lower, high), ((ratio > high) | (ratio < lower)) & (x.credit != 0)

    token, token_cut = clip_ratio(x.log_ratio, 1 - clip_low, 1 + clip_high)
    level = sequence_ratio(x.log_ratio, x.trajectory)
    sequence, sequence_cut = clip_ratio(level, 1 - sequence_clip_low, 1 + sequence_clip_high)
    # selected, not multiplied: a ratio that has overflowed times a share of 0 would be nan
    mixed = torch.where(share == 0, torch.zeros_like(token), share * token)
    mixed = mixed + torch.where(share == 1, torch.zeros_like(sequence), (1 - share) * sequence)
    # the same for an advantage of 0; a token counts as clipped if a level that has a share is held
    loss = -x.credit * torch.where(x.credit == 0, torch.ones_like(mixed), mixed)
    return loss, (token_cut & (share > 0)) | (sequence_cut & (share < 1))


@part("nested_clip", stage="surrogate", couples="trajectory")
def nested_clip(x: Entries, *, trajectory_clip: Width = 0.2, residual_clip: Width = 0.2) -> tuple[Tensor, Tensor]:
    """Trajectory and token clip: -A exp(hold(a, trajectory_clip) + hold(log rho - a, residual_clip)).

    a is the trajectory's mean log-ratio.

    trajectory_clip, residual_clip  in log space, either way: 0.2 holds the factor in (e^-0.2, e^0.2)

    Both levels are held on both sides, whatever the sign of the credit: nothing is pessimistic. The residual is taken
    from the mean before that is held, so that the levels are orthogonal: where the mean is held, a trajectory's
    gradient sums to 0, and its tokens move against each other only. On policy the loss is -A and its gradient
    REINFORCE's. Reads the tokens' own log-ratios: `objective.ratio` plays no part.

    Simpler than FiberPO, which is `fiber_gate`.
    """
    # the residual is from the mean before that is held, which keeps the two levels orthogonal
    n = int(x.trajectory.max()) + 1 if x.trajectory.numel() else 0
    mean_log_ratio = per_trajectory(x.log_ratio, x.trajectory, n)[x.trajectory]
    residual = x.log_ratio - mean_log_ratio
    is_clipped = (mean_log_ratio.abs() > trajectory_clip) | (residual.abs() > residual_clip)
    clipped_log_ratio = mean_log_ratio.clamp(-trajectory_clip, trajectory_clip) + residual.clamp(
        -residual_clip, residual_clip
    )
    return -x.credit * clipped_log_ratio.exp(), is_clipped & (x.credit != 0)


def rollback_gate(drift: Tensor, budget: float, tokens: Tensor) -> Tensor:
    """Gate on a trajectory's drift of one sign (at least 0): the drift up to the budget, then rolled back.

    Beyond the budget it falls with a slope of -tokens, and is 0 from budget (1 + 1 / tokens) on.

    >>> rollback_gate(torch.tensor([0.1, 0.22, 0.3]), 0.2, torch.tensor([4.0, 4.0, 4.0])).round(decimals=4)
    tensor([0.1000, 0.1200, 0.0000])
    """
    falling = (tokens + 1) * budget - tokens * drift
    return torch.where(drift <= budget, drift, torch.where(falling > 0, falling, torch.zeros_like(drift)))


@part("fiber_gate", stage="surrogate", couples="trajectory")
def fiber_gate(
    x: Entries, *, budget_up: Width = 0.55, budget_down: Width = 0.45, residual_clip: Width = 0.2
) -> tuple[Tensor, Tensor]:
    """Trajectory gate that rolls back, times a clipped residual (FiberPO): -A w_i r_t.

    u, d      mean over the trajectory's tokens of max(log rho, 0) and of max(-log rho, 0)
    log w_i   g(u, budget_up) - g(d, budget_down), g of `rollback_gate`
    log r_t   clip(log rho - u) + clip(d) where log rho >= 0, clip(log rho + d) - clip(u) where it is below, each to
              +-residual_clip

    Where nothing is held w_i r_t = rho; where a budget is passed the gradient pulls the trajectory back. No minimum
    with the free ratio, and the sign of the credit plays no part. Counted as clipped: tokens whose residual is held,
    and all of a trajectory beyond a budget. Reads the tokens' own log-ratios: `objective.ratio` plays no part.

    Source: JoyAI-LLM Flash, arXiv 2604.03044, eq. 1 to 5, which states FiberPO (arXiv 2603.08239).
    """
    # drift up and down are apart: a trajectory whose tokens move both ways has not stayed in place
    n = int(x.trajectory.max()) + 1 if x.trajectory.numel() else 0
    up, down = (per_trajectory(y.clamp_min(0), x.trajectory, n)[x.trajectory] for y in (x.log_ratio, -x.log_ratio))
    tokens = torch.bincount(x.trajectory, minlength=n)[x.trajectory].to(up)
    base = rollback_gate(up, budget_up, tokens) - rollback_gate(down, budget_down, tokens)

    def clip_residual(y: Tensor) -> Tensor:
        return y.clamp(-residual_clip, residual_clip)

    # a residual is from the drift of the token's own direction: base + residual is log rho where nothing is held
    likelier = x.log_ratio >= 0
    residual_free = torch.where(likelier, x.log_ratio - up, x.log_ratio + down)
    residual = clip_residual(residual_free) + torch.where(likelier, clip_residual(down), -clip_residual(up))
    is_clipped = (up > budget_up) | (down > budget_down) | (residual_free.abs() > residual_clip)
    return -x.credit * (base + residual).exp(), is_clipped & (x.credit != 0)
