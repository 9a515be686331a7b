"""A clip and a credit that differ between tokens of low and of high entropy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.objectives.gate import DualClip, Entries


@torch.no_grad()
def entropy_score(entropy: Tensor, quantile: float = 0.8) -> Tensor:
    """[n] float64 in [-1, 1]: how far a token's log-entropy lies from their quantile.

    log H - Q(log H), over its largest value above 0, and over the magnitude of its smallest below; log H of at least
    1e-8 nats. Q is a token's own value, the nearest to the quantile, so that one token at least has h = 0. (Dividing by
    a standard deviation before would change nothing.)
    """
    log = entropy.to(torch.float64).clamp_min(1e-8).log()
    one = torch.zeros(log.shape, dtype=torch.int64)
    gap = log - levels.quantile(log, one, quantile, interpolation="nearest")
    gap = torch.where(gap.abs() <= 1e-12 * log.abs(), 0.0, gap)
    top, low = levels.max(gap, one).clamp_min(0), -levels.min(gap, one).clamp_max(0)
    size = torch.where(gap > 0, top, low)
    return gap / torch.where(size > 0, size, 1.0)


@dataclass(frozen=True)
class EntropyAdaptiveClip(DualClip):
    """`DualClip` whose widths and credit follow each token's `entropy_score` h, detached, over the optimiser step.

    low = clip_low (1 - clip_gain min(h, 0)),  high = clip_high (1 + clip_gain max(h, 0)): tokens of low entropy may
    become less likely by more, those of high entropy likelier by more. The credit is times 1 + credit_gain h where
    h > 0 and rho is outside (1 - low / 2, 1 + high / 2), and where h <= 0 and rho is inside.

    clip_low, clip_high, ratio_max  as in `DualClip`
    entropy_quantile  of the tokens' log-entropies, where h is 0
    clip_gain, credit_gain  0 and 0: `DualClip`; credit_gain up to 1, so that no credit changes its sign

    Source: HAPO, arXiv 2509.16591, and its code.
    """

    ratio_max: float = 10.0
    entropy_quantile: float = 0.8
    clip_gain: float = 1.0
    credit_gain: float = 1.0

    couples = "step"
    outputs = ("entropy",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.entropy_quantile <= 1:
            raise ConfigError(f"objective.entropy_quantile is {self.entropy_quantile}; it is between 0 and 1")
        if not (self.clip_gain >= 0 and 0 <= self.credit_gain <= 1):
            raise ConfigError(
                f"objective.clip_gain ({self.clip_gain}) is 0 or more, and objective.credit_gain ({self.credit_gain}) "
                "between 0 and 1"
            )

    @torch.no_grad()
    def adapted(self, x: Entries) -> tuple[Tensor, Tensor, Tensor]:
        """([n], [n], [n]): lowest and highest ratio, and what the credit is multiplied by."""
        assert x.entropy is not None
        score = entropy_score(x.entropy.detach(), self.entropy_quantile).to(x.credit)
        low = self.clip_low * (1 - self.clip_gain * score.clamp_max(0))
        high = self.clip_high * (1 + self.clip_gain * score.clamp_min(0))
        inside = (x.ratio > 1 - low / 2) & (x.ratio < 1 + high / 2)
        scale = torch.where(inside == (score <= 0), 1 + self.credit_gain * score, torch.ones_like(score))
        return 1 - low, 1 + high, scale

    def loss(self, x: Entries) -> Tensor:
        low, high, scale = self.adapted(x)
        ratio = torch.where(x.credit < 0, x.ratio.clamp_max(self.ratio_max), x.ratio)
        held = torch.where(x.credit >= 0, ratio.clamp(max=high), ratio.clamp(min=low))
        return -scale * x.credit * held

    def clipped(self, x: Entries) -> Tensor:
        low, high, _ = self.adapted(x)
        falling = (x.ratio < low) | (x.ratio > self.ratio_max)
        return ((x.credit > 0) & (x.ratio > high)) | ((x.credit < 0) & falling)
