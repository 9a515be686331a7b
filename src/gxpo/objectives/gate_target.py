"""A gate that regresses the ratio on the bound it may reach."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.objectives.gate import Entries, Gate


@dataclass(frozen=True)
class RatioTarget(Gate):
    """|A| |rho - rho*| with rho* = 1 - clip_low + (clip_low + clip_high) sigmoid(m / temperature).

    m is the credit less its group's median (`Entries.standing`): rho* is 1 + clip_high above the median and
    1 - clip_low below it; on it, 1 + (clip_high - clip_low) / 2, which is 1 for equal widths.

    clip_low, clip_high  relative to 1
    temperature          in units of credit; 0: the bounds themselves

    The gradient is that of -A rho until the target, where the clip's ends, and the opposite beyond it; 0 on the target
    itself, to the precision of two forward passes. What has credit and stands on the median is held at its target. Of
    all policies of bounded ratio, rho* is the one of greatest advantage.

    Source: BPO, arXiv 2604.18578 (the advantage-weighted total variation), and its code.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    temperature: float = field(default=0.0, kw_only=True)

    couples = "group"

    def __post_init__(self) -> None:
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"objective.clip_low and objective.clip_high are widths, >= 0, not {self.clip_low}, {self.clip_high}"
            )
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"objective.temperature is {self.temperature}; it is 0 or more")

    def target(self, x: Entries) -> Tensor:
        """rho* of each entry."""
        above = x.credit if x.standing is None else x.standing
        share = (1 + above.sign()) / 2 if self.temperature == 0 else torch.sigmoid(above / self.temperature)
        return 1 - self.clip_low + (self.clip_low + self.clip_high) * share

    def _off(self, x: Entries) -> Tensor:
        """rho - rho*, without a gradient where its sign would be that of the rounding."""
        target = self.target(x)
        off = x.ratio - target
        return torch.where(off.detach().abs() <= levels.FORWARD * target, 0.0, off)

    def loss(self, x: Entries) -> Tensor:
        return x.credit.abs() * self._off(x).abs()

    def clipped(self, x: Entries) -> Tensor:
        """Entries on their target, without a gradient, and beyond it, where it is turned."""
        off = self._off(x)
        return ((x.credit > 0) & (off >= 0)) | ((x.credit < 0) & (off <= 0))
