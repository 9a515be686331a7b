"""Masks by the ratio, apart from what the entries that pass weigh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gxpo.errors import ConfigError, one_of
from gxpo.objectives.gate import Entries
from gxpo.objectives.gate_detached import DetachedWeight

SIDES = ("one", "two", "ring")


@dataclass(frozen=True)
class RatioMask(DetachedWeight):
    """-stop(w) A logprob for entries that pass, 0 for the others.

    side        "one"   rho <= 1 + clip_high for A > 0, rho >= 1 - clip_low for A < 0: what PPO's clip leaves
                "two"   1 - clip_low <= rho <= 1 + clip_high, whatever the credit
                "ring"  "two", and what is far off on the side that its credit moves back from: rho <= 1 - ring_low for
                        A > 0, rho >= 1 + ring_high for A < 0
    importance  "none": w = 1; "ratio": w = min(rho, ratio_max)
    clip_low, clip_high, ring_low, ring_high  relative to 1;   ratio_max  absolute

    With "one", "ratio" and no ratio_max the gradient is that of the clip. Source: REC, arXiv 2509.24203, and its code.
    """

    side: Literal["one", "two", "ring"] = "one"
    importance: Literal["none", "ratio"] = "none"
    clip_low: float = 0.2
    clip_high: float = 0.2
    ring_low: float = 0.6
    ring_high: float = 2.0
    ratio_max: float = math.inf

    def __post_init__(self) -> None:
        one_of("objective.side", self.side, SIDES)
        one_of("objective.importance", self.importance, ("none", "ratio"))
        if not (0 <= self.clip_low <= self.ring_low and 0 <= self.clip_high <= self.ring_high and self.ratio_max > 0):
            raise ConfigError(
                f"objective: 0 <= clip_low ({self.clip_low}) <= ring_low ({self.ring_low}), 0 <= clip_high "
                f"({self.clip_high}) <= ring_high ({self.ring_high}), and ratio_max ({self.ratio_max}) is above 0"
            )

    def passes(self, x: Entries) -> Tensor:
        """[n] bool."""
        up, high, low = x.credit > 0, x.ratio <= 1 + self.clip_high, x.ratio >= 1 - self.clip_low
        if self.side == "one":
            return torch.where(up, high, low)
        inside = high & low
        if self.side == "two":
            return inside
        return inside | torch.where(up, x.ratio <= 1 - self.ring_low, x.ratio >= 1 + self.ring_high)

    def weight(self, x: Entries) -> Tensor:
        own = x.ratio.clamp_max(self.ratio_max) if self.importance == "ratio" else torch.ones_like(x.ratio)
        return torch.where(self.passes(x), own, torch.zeros_like(own))
