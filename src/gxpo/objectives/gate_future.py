"""A clip whose loss counts more where the rest of the trajectory has become likelier."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.objectives.gate import DualClip, Entries
from gxpo.objectives.prefix import recursion


@torch.no_grad()
def future_drift(log_ratio: Tensor, trajectory: Tensor, half_life: float, ratio_max: float) -> Tensor:
    """[n] float64: F_t = sum_{k >= t} 2^(-(k - t) / half_life) log rho_k over the rest of the trajectory.

    Tokens whose ratio exceeds `ratio_max` count as 0.
    """
    kept = torch.where(log_ratio > math.log(ratio_max), 0.0, log_ratio.to(torch.float64))
    return recursion(kept, 2.0 ** (-1.0 / half_life), trajectory, reverse=True)


@dataclass(frozen=True)
class FutureDrift(DualClip):
    """f_t `DualClip`, f_t = clip(exp(F_t), factor_low, factor_high) detached, F_t = `future_drift` of the log-ratios.

    clip_low, clip_high, ratio_max  as in `DualClip`; `ratio_max` also says which tokens are left out of F
    half_life    tokens after which a log-ratio counts half
    factor_low, factor_high  bounds of f, absolute; 1 and 1.2: it only amplifies
    safe_ratio   where A < 0 and rho exceeds it, f is held in [0.8, 1]
    dual_clipped_max  tokens beyond `ratio_max` where A < 0 that a trajectory may have: one with more is dropped, from
                 the denominator too. None: never, and then only trajectories are coupled

    On policy F = 0 and f = 1: it takes several updates a step to act.

    Source: FIPO, arXiv 2603.19835, and its code.
    """

    ratio_max: float = 10.0
    half_life: float = 32.0
    factor_low: float = 1.0
    factor_high: float = 1.2
    safe_ratio: float = 10.0
    dual_clipped_max: int | None = 1

    beside = "trajectory"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "couples", "trajectory" if self.dual_clipped_max is None else "step")
        if self.dual_clipped_max is not None and self.dual_clipped_max < 0:
            raise ConfigError(
                f"objective.dual_clipped_max is {self.dual_clipped_max}; it is a number of tokens, or null for no bound"
            )
        if not 0 < self.factor_low <= 1 <= self.factor_high < math.inf:
            raise ConfigError(
                f"objective: 0 < factor_low ({self.factor_low}) <= 1 <= factor_high ({self.factor_high}), both finite"
            )
        if not (self.half_life > 0 and self.safe_ratio > 0):
            raise ConfigError(
                f"objective.half_life ({self.half_life}) and objective.safe_ratio ({self.safe_ratio}) are above 0"
            )

    @torch.no_grad()
    def factor(self, x: Entries) -> Tensor:
        """[n] f, detached."""
        drift = future_drift(x.log_ratio, x.trajectory, self.half_life, self.ratio_max)
        factor = drift.clamp_max(math.log(self.factor_high) + 1.0).exp().clamp(self.factor_low, self.factor_high)
        unsafe = (x.credit < 0) & (x.ratio > self.safe_ratio)
        return torch.where(unsafe, factor.clamp(0.8, 1.0), factor).to(x.credit)

    def loss(self, x: Entries) -> Tensor:
        return self.factor(x) * super().loss(x)

    @torch.no_grad()
    def left_out(self, x: Entries) -> Tensor | None:
        if self.dual_clipped_max is None:
            return None
        beyond = ((x.credit < 0) & (x.ratio > self.ratio_max)).to(torch.float64)
        return levels.sum(beyond, x.trajectory) > self.dual_clipped_max

    def metrics(self, x: Entries) -> dict[str, float]:
        """future_factor  mean of f over the active entries
        dual_clip_dropped  of the active entries, those in trajectories that are dropped
        """
        out, found = self.left_out(x), {"future_factor": float(self.factor(x).mean())}
        return found if out is None else found | {"dual_clip_dropped": float(out.double().mean())}
