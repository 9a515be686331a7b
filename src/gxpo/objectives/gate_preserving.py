"""The clip, with a bounded gradient left to the entries that it cuts."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.gate import Clip, Entries


@dataclass(frozen=True)
class PreservingClip(Clip):
    """`Clip`, in which a bound b that holds an entry is b rho / stop(rho): the same value, and the gradient -A b.

    slope_low, slope_high  factors on the lower and on the upper bound, value and gradient; 0: cut, as in `Clip`
    ratio_max              absolute, above 1: as in `DualClip`, no gradient for A < 0 beyond it; inf: no such bound

    Which entries are held is decided by `Clip`, before any factor. Source: GPPO, arXiv 2508.07629, and its code (both
    1, ratio_max 3); CE-GPPO, arXiv 2509.20712 (slope_low at most slope_high, such as 0.75 and 1).
    """

    slope_low: float = 1.0
    slope_high: float = 1.0
    ratio_max: float = field(default=3.0, metadata={"unbounded": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.slope_low >= 0 and self.slope_high >= 0):
            raise ConfigError(
                f"objective.slope_low and objective.slope_high are 0 or more, not {self.slope_low}, {self.slope_high}"
            )
        if not self.ratio_max > 1:
            raise ConfigError(f"objective.ratio_max is {self.ratio_max}; it is an absolute bound above 1, such as 3.0")

    def _bound(self, x: Entries) -> Tensor:
        one = torch.ones_like(x.ratio)
        high, low = self.slope_high * (1 + self.clip_high), self.slope_low * (1 - self.clip_low)
        return torch.where(x.credit > 0, high * one, low * one)

    def loss(self, x: Entries) -> Tensor:
        level = x.log_level
        alive = 1 + (level - level.detach())  # rho / stop(rho), in value and slope, whatever rho is
        held = torch.where(super().clipped(x), self._bound(x) * alive, x.ratio)
        return -x.credit * torch.where(x.credit < 0, held.clamp_max(self.ratio_max), held)

    def clipped(self, x: Entries) -> Tensor:
        """Entries whose gradient is smaller than -A rho's: below the lower bound it may be greater."""
        beyond = (x.credit < 0) & (x.ratio > self.ratio_max)
        return (super().clipped(x) & (self._bound(x) < x.ratio)) | beyond
