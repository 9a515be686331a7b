"""PPO clip with a power mean over each trajectory's tokens, its exponent from the rewards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, TermPart
from gxpo.algorithms.objectives.sequence_score import weight_gradients
from gxpo.algorithms.objectives.surrogate import Clip, Entries, Width, denominator
from gxpo.base.errors import ConfigError
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


def log_power_mean(x: Tensor, unit: Tensor, n: int, power: float) -> Tensor:
    """Log of the power mean (mean over the unit of e^(power x))^(1 / power) of e^x, [n]; 0 for units without members.

    x [m]; unit [m] int64; power above 0: 1 the arithmetic mean, towards 0 the geometric one. Differentiable, and exact
    to rounding for the smallest powers too.
    """
    count = torch.bincount(unit, minlength=n)
    top = torch.full((n,), -math.inf, dtype=x.dtype).scatter_reduce_(0, unit, x.detach(), "amax")
    top = torch.where(count > 0, top, torch.zeros_like(top))
    # measured from the largest member, and by expm1: exact for powers near 0, where the sum of exponentials is flat
    terms = torch.expm1(power * (x - top[unit]))
    mean = x.new_zeros(n).index_add(0, unit, terms) / count.clamp_min(1)
    return top + torch.log1p(mean) / power


def feedback(outcome: Tensor) -> tuple[float, float]:
    """Mean of the outcomes, and mean / (population std + 1e-6); 0, 0 without outcomes."""
    if not outcome.numel():
        return 0.0, 0.0
    mean, std = float(outcome.mean()), float(outcome.std(correction=0))
    return mean, mean / (std + 1e-6)


@part("power_mean", stage="term")
@dataclass(frozen=True)
class PowerMean(TermPart):
    """Power mean of clipped terms: -mean over trajectories of sgn(A) M_p(phi).

    phi_t = |min(rho A, clip(rho, 1 - clip_low, 1 + e) A)|.

    p = exp(-gamma mu),  e = clip_min + (clip_max - clip_min) max(0, tanh(mu / (sigma + 1e-6))); mu and sigma are mean
    and population std of the compared trajectories' outcomes of the optimiser step. M_p is the power mean over the
    trajectory's trained tokens: rewards of 0 give the arithmetic mean, better ones come nearer to the geometric one,
    in which one large ratio counts less.

    gamma      how fast the exponent falls; 0: GRPO with the upper bound e
    clip_low, clip_min, clip_max  relative to 1
    ratio_over, on_unknown_behaviour  as in `PolicyGradient` ("error" | "one")

    The minimum is PPO's, of signed terms: a wrong answer's token stops at 1 - clip_low. Where the advantage varies
    within a trajectory, tokens of positive and of negative advantage have a mean each, times their share of its
    tokens; those of advantage 0 are in no mean. Weights multiply derivatives (`weight_gradients`) and nothing else.

    Source: APMPO, arXiv 2605.04066.
    """

    gamma: Width = 0.8
    clip_low: Annotated[float, Interval(ge=0, lt=1)] = 0.2
    clip_min: Width = 0.2
    clip_max: Width = 0.4
    ratio_over: Literal["proximal", "behaviour"] = "proximal"
    on_unknown_behaviour: Literal["error", "one"] = "error"

    couples = "trajectory"
    aggregate = "sequence_mean"

    def __post_init__(self) -> None:
        if not self.clip_min <= self.clip_max:
            raise ConfigError(f"objective.clip_min is {self.clip_min}; it is at most clip_max ({self.clip_max})")

    def adapt(self, forest: Forest) -> tuple[float, Clip]:
        """Exponent and clip of this step, adapted to its outcomes."""
        mean, signal = feedback(forest.outcome[forest.compared & forest.scored])
        # outcomes of any size: beyond e^27 the power mean is the maximum to rounding, below e^-27 the geometric mean
        power = math.exp(min(max(-self.gamma * mean, -27.0), 27.0))
        high = self.clip_min + (self.clip_max - self.clip_min) * max(0.0, math.tanh(signal))
        return power, Clip(self.clip_low, high)

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of non-zero advantage, of trajectories in which one of them has a weight."""
        read_P = forest.path_trainable & (credit != 0)
        has_weight_R = torch.zeros(forest.n_trajectories, dtype=torch.bool)
        has_weight_R[forest.path_trajectory[read_P & (weight != 0)]] = True
        return read_P & forest.to_path(has_weight_R, "R")

    def _log_ratio(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Indices into P of the active tokens, their log-ratios and advantages, float64."""
        below = denominator(policy, forest.path_trainable, self.ratio_over, self.on_unknown_behaviour)
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        logprob = weight_gradients(policy.logprob[entries].to(torch.float64), weight[entries])
        return entries, logprob - below[entries].to(torch.float64), credit[entries].to(torch.float64)

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        power, clip = self.adapt(forest)
        entries, log_ratio, advantage = self._log_ratio(forest, policy, credit, weight)
        # PPO's minimum of signed terms, taken in logs: positive tokens are bounded above, negative ones below
        clipped_above = log_ratio.clamp_max(math.log1p(clip.clip_high))
        clipped_log_ratio = torch.where(advantage > 0, clipped_above, log_ratio.clamp_min(math.log1p(-clip.clip_low)))
        # tokens of either sign have a power mean of their own: halves 2 r and 2 r + 1 of trajectory r
        is_positive, owner, n = advantage > 0, forest.path_trajectory[entries], forest.n_trajectories
        half_of_trajectory = 2 * owner + is_positive.to(torch.int64)
        mean_RH = (
            log_power_mean(advantage.abs().log() + clipped_log_ratio, half_of_trajectory, 2 * n, power).exp().view(n, 2)
        )
        # each half counts by its share of the trajectory's tokens; tokens of advantage 0 are in the length alone
        length_R = forest.lengths()
        share_RH = (
            torch.bincount(half_of_trajectory, minlength=2 * n).view(n, 2).to(torch.float64)
            / length_R.clamp_min(1)[:, None]
        )
        loss = (share_RH * (mean_RH * mean_RH.new_tensor([1.0, -1.0]))).sum() / (length_R > 0).sum().clamp_min(1)
        return loss.to(policy.logprob.dtype), self._figures(forest, clip, log_ratio, advantage)

    @torch.no_grad()
    def _figures(self, forest: Forest, clip: Clip, log_ratio: Tensor, advantage: Tensor) -> dict[str, float]:
        """Metrics of the clip and of the ratio.

        clip_fraction  of all trainable entries, those whose gradient the clip cuts
        approx_kl, ratio_max, on_policy  as of `PolicyGradient`, over the active entries
        """
        if not advantage.numel():
            return {"clip_fraction": 0.0, "approx_kl": 0.0, "ratio_max": 1.0, "on_policy": 1.0}
        is_clipped = clip.clipped(Entries.of(log_ratio.exp(), advantage))
        return {
            "clip_fraction": float(is_clipped.sum()) / int(forest.path_trainable.sum()),
            "approx_kl": float((log_ratio.expm1() - log_ratio).mean()),
            "ratio_max": float(log_ratio.exp().max()),
            "on_policy": float(bool((log_ratio == 0).all())),
        }
