"""A gate that regresses the ratio on the bound it may reach."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.gate import Entries, Gate


@dataclass(frozen=True)
class RatioTarget(Gate):
    """|A| |rho - rho*| with rho* = 1 + clip_high for A > 0, 1 - clip_low for A < 0; 0 for A = 0.

    clip_low, clip_high  relative to 1

    The gradient is that of -A rho until the target, where the clip's ends, and the opposite beyond it; 0 on the target
    itself. Of all policies of bounded ratio, rho* is the one of greatest advantage if the credit is centred by its
    median.

    Source: BPO, arXiv 2604.18578 (the advantage-weighted total variation).
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"objective.clip_low and objective.clip_high are widths, >= 0, not {self.clip_low}, {self.clip_high}"
            )

    def loss(self, x: Entries) -> Tensor:
        off = torch.where(x.credit >= 0, x.ratio - (1 + self.clip_high), x.ratio - (1 - self.clip_low))
        return x.credit.abs() * off.abs()

    def clipped(self, x: Entries) -> Tensor:
        """Entries on their target, without a gradient, and beyond it, where it is turned."""
        high, low = x.ratio >= 1 + self.clip_high, x.ratio <= 1 - self.clip_low
        return ((x.credit > 0) & high) | ((x.credit < 0) & low)
