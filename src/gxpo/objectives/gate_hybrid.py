"""Token and sequence ratio in one surrogate, each held in a region of its own before they are mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, one_of
from gxpo.objectives.gate import Clip, Entries
from gxpo.objectives.ratio import ratio_of, sequence_ratio


@torch.no_grad()
def relative_entropy(entropy: Tensor, trajectory: Tensor) -> Tensor:
    """[n] float64 in [0, 1]: where a token's entropy lies between its trajectory's extremes; 1/2 where all are equal.

    >>> relative_entropy(torch.tensor([1.0, 3.0, 2.0, 0.7]), torch.tensor([0, 0, 0, 1])).tolist()
    [0.0, 1.0, 0.5, 0.5]
    """
    low, high = levels.min(entropy, trajectory), levels.max(entropy, trajectory)
    flat = levels.degenerate(entropy, trajectory)
    return torch.where(flat, 0.5, (entropy.to(torch.float64) - low) / torch.where(flat, 1.0, high - low))


@dataclass(frozen=True)
class HybridClip(Clip):
    """-A (w hold(rho_t) + (1 - w) hold(s_t)), s the sequence ratio in its token form (`sequence_ratio`).

    clip_low, clip_high    of the token's ratio, relative to 1
    sequence_clip_low, sequence_clip_high  of the sequence's
    mixing       "average": w = token_share; "entropy": w = `relative_entropy` of the current policy, detached, so that
                 uncertain tokens follow their own ratio
    token_share  1: token ratios alone, 0: the sequence ratio alone
    sides        "both": each ratio is held on both sides, whatever the credit's sign; "improving": on the side that
                 would go on improving, as in `Clip`: then token_share 1 is GRPO's loss and 0 is GSPO's

    Reads the tokens' own log-ratios: `objective.ratio` plays no part. Source: DHPO, arXiv 2601.05607.
    """

    sequence_clip_low: float = 3e-4
    sequence_clip_high: float = 4e-4
    mixing: Literal["average", "entropy"] = "average"
    token_share: float = 0.5
    sides: Literal["both", "improving"] = "both"

    couples = "trajectory"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("objective.mixing", self.mixing, ("average", "entropy"))
        one_of("objective.sides", self.sides, ("both", "improving"))
        if not (self.sequence_clip_low >= 0 and self.sequence_clip_high >= 0):
            raise ConfigError(
                "objective.sequence_clip_low and objective.sequence_clip_high are widths, >= 0, not "
                f"{self.sequence_clip_low}, {self.sequence_clip_high}"
            )
        if not 0 <= self.token_share <= 1:
            raise ConfigError(f"objective.token_share is {self.token_share}; it is a share between 0 and 1")
        if self.mixing == "entropy":
            object.__setattr__(self, "outputs", ("entropy",))

    def share(self, x: Entries) -> Tensor:
        """[n] w, the token ratio's share."""
        if self.mixing == "average":
            return torch.full_like(x.log_ratio, self.token_share, requires_grad=False)
        assert x.entropy is not None
        return relative_entropy(x.entropy.detach(), x.trajectory).to(x.credit)

    def _branches(self, x: Entries) -> tuple[tuple[Tensor, float, float], tuple[Tensor, float, float]]:
        """Each branch's ratio, and its lowest and highest value."""
        token, sequence = ratio_of(x.log_ratio), ratio_of(sequence_ratio(x.log_ratio, x.trajectory))
        own = (1 - self.clip_low, 1 + self.clip_high)
        return (token, *own), (sequence, 1 - self.sequence_clip_low, 1 + self.sequence_clip_high)

    def loss(self, x: Entries) -> Tensor:
        def held(ratio: Tensor, low: float, high: float) -> Tensor:
            if self.sides == "both":
                return ratio.clamp(low, high)
            return torch.where(x.credit >= 0, ratio.clamp_max(high), ratio.clamp_min(low))

        token, sequence = (held(*branch) for branch in self._branches(x))
        share = self.share(x)
        own = torch.where(share == 0, torch.zeros_like(token), share * token)
        whole = torch.where(share == 1, torch.zeros_like(sequence), (1 - share) * sequence)
        mixed = own + whole
        return -x.credit * torch.where(x.credit == 0, torch.ones_like(mixed), mixed)

    def clipped(self, x: Entries) -> Tensor:
        def cut(ratio: Tensor, low: float, high: float) -> Tensor:
            up, down = ratio > high, ratio < low
            if self.sides == "both":
                return (up | down) & (x.credit != 0)
            return ((x.credit > 0) & up) | ((x.credit < 0) & down)

        token, sequence = (cut(*branch) for branch in self._branches(x))
        share = self.share(x)
        return (token & (share > 0)) | (sequence & (share < 1))
