"""A mask by how far a token's probability moved, not by what factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gxpo.errors import ConfigError, one_of
from gxpo.objectives.gate import Entries
from gxpo.objectives.gate_detached import DetachedWeight


@torch.no_grad()
def binary_kl(below: Tensor, logprob: Tensor, eps: float = 1e-8) -> Tensor:
    """[n] KL(q || p) in nats of "this token or another", q = e^below, p = e^logprob.

    eps  added to 1 - q and 1 - p: a p that was rounded to 1 is near a q that was not, not infinitely far from it

    >>> x = torch.tensor([0.5, 0.5, 1.0, 1.0], dtype=torch.float64).log()
    >>> binary_kl(x, torch.tensor([0.5, 1.0, 1.0, 0.25], dtype=torch.float64).log()).round(decimals=6).tolist()
    [0.0, 8.517193, 0.0, 1.386294]
    """
    others, now = -below.expm1(), -logprob.expm1()
    return below.exp() * (below - logprob) + others * ((others + eps).log() - (now + eps).log())


@dataclass(frozen=True)
class DivergenceMask(DetachedWeight):
    """-stop(min(rho, ratio_max)) A logprob, and nothing for tokens that moved on by more than the bound.

    divergence  "tv": moved by p - q, "kl": by `binary_kl` of q and p; p and q are the token's probability under the
                policy and under what its ratio divides by
    divergence_low, divergence_high  bounds for A < 0, where p < q, and for A > 0, where p > q
    ratio_max   absolute, for what is left

    Unlikely tokens go on being trained at ratios that a clip would cut; likely ones are stopped before. Source: DPPO,
    arXiv 2602.04879 (binary forms), and its code.
    """

    divergence: Literal["tv", "kl"] = "tv"
    divergence_low: float = 0.2
    divergence_high: float = 0.2
    ratio_max: float = 20.0

    def __post_init__(self) -> None:
        one_of("objective.divergence", self.divergence, ("tv", "kl"))
        if not (self.divergence_low >= 0 and self.divergence_high >= 0 and self.ratio_max > 0):
            raise ConfigError(
                f"objective: divergence_low ({self.divergence_low}) and divergence_high ({self.divergence_high}) are 0 "
                f"or more, ratio_max ({self.ratio_max}) is above 0"
            )

    @torch.no_grad()
    def weight(self, x: Entries) -> Tensor:
        moved = x.logprob.exp() - x.below.exp()
        far = moved.abs() if self.divergence == "tv" else binary_kl(x.below, x.logprob)
        up, down = (moved > 0) & (far > self.divergence_high), (moved < 0) & (far > self.divergence_low)
        out = torch.where(x.credit > 0, up, down)
        return torch.where(out, torch.zeros_like(x.ratio), x.ratio.clamp_max(self.ratio_max))
