"""Gates: how a token's loss depends on its ratio, and where its gradient ends.

With rho the ratio and A the credit, a gate gives a loss per entry, to be minimised. `Clip`, `DualClip` and `LogClip`
are -A rho with rho held inside a region on the side that would go on improving; `Truncate` is -stop(w) A logprob;
`Unclipped` holds nothing. `shaped` is the loss of an entry that has no ratio, because who sampled it is unknown.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.ranges import Part


def shaped(logprob: Tensor, credit: Tensor, gamma: float = 0.1) -> Tensor:
    """[n] -A f(pi) with f(x) = x / (x + gamma), pi = exp(logprob): the loss of tokens of unknown behaviour policy.

    The behaviour probability is taken to be 1, so the "ratio" is pi itself. The gradient in the log-prob is
    -A gamma pi / (pi + gamma)^2: greatest where pi = gamma and small for tokens that are certain either way, where
    plain pi would leave unlikely tokens without a gradient.

    gamma  above 0, in units of probability

    Source: LUFFY, arXiv 2504.14945 (policy shaping).
    """
    return -credit * torch.sigmoid(logprob - math.log(gamma))


@dataclass(frozen=True)
class Entries:
    """What gates and ratios see: columns [n] of the entries whose outputs are read, in path order.

    logprob     of the current policy, carries the gradient
    below       detached log-prob that the token's ratio divides by
    log_ratio   the token's own, logprob - below
    ratio       at the ratio's level, after `Gate.before`; what most gates read
    credit      A
    trajectory, turn  int64: entries of one trajectory, or of one step of one, have the same number
    entropy     of the current policy (nats), detached or not as the learner gave it; None where no part asks for it
    level       log of `ratio`, also where that has left the range of its dtype; None: its logarithm
    standing    A less the median of its group, over trajectories; None unless the gate couples groups
    """

    logprob: Tensor
    below: Tensor
    log_ratio: Tensor
    ratio: Tensor
    credit: Tensor
    trajectory: Tensor
    turn: Tensor
    entropy: Tensor | None = None
    level: Tensor | None = None
    standing: Tensor | None = None

    @property
    def log_level(self) -> Tensor:
        """`level`, or the logarithm of `ratio`."""
        return self.ratio.log() if self.level is None else self.level

    @classmethod
    def of(cls, ratio: Tensor, credit: Tensor, logprob: Tensor | None = None) -> Entries:
        """Single tokens of trajectories of their own, by their ratio; where the log-prob is not given, `below` is 0."""
        own = ratio.log() if logprob is None else logprob
        alone = torch.arange(len(ratio))
        return cls(own, (own - ratio.log()).detach(), ratio.log(), ratio, credit, alone, alone)


class Gate(Part, ABC):  # those that are built on it add abstract methods
    """Base: the unclipped importance-weighted loss -A rho.

    couples   "token" | "trajectory" | "group" | "step": whose outputs an entry's derivative may depend on, through
              detached factors too. Beyond "token", all trained entries of such a trajectory (of the step) are in
              `Entries`; with "group", whole groups are there and `Entries.standing` is given
    beside    None, or, of a gate that couples a step through denominators alone, "trajectory": it is enough for it that
              the trajectories that have credit are in `Entries`
    outputs   policy outputs beyond the log-prob that it reads: "entropy"
    """

    slot = "objective"
    couples: str = "token"
    beside: str | None = None
    outputs: tuple[str, ...] = ()

    def before(self, log_ratio: Tensor, credit: Tensor) -> Tensor:
        """The token log-ratio that enters the ratio's level (the sequence mean, for a sequence ratio)."""
        return log_ratio

    def loss(self, x: Entries) -> Tensor:
        """[n] loss of each entry."""
        return -x.credit * x.ratio

    def clipped(self, x: Entries) -> Tensor:
        """[n] bool: entries whose gradient the gate cuts or shrinks."""
        return torch.zeros_like(x.ratio, dtype=torch.bool)

    def left_out(self, x: Entries) -> Tensor | None:
        """[n] bool: entries that are left out of the loss and of what it is divided by, which couples a step; None:
        none ever."""
        return None

    def metrics(self, x: Entries) -> Mapping[str, float]:
        """Further figures worth logging, by name."""
        return {}


@dataclass(frozen=True)
class Unclipped(Gate):
    """-A rho, however far the policy has moved. Source: LUFFY's recipe (arXiv 2504.14945) for on-policy tokens."""


@dataclass(frozen=True)
class Clip(Gate):
    """max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)): no gradient where A > 0 and rho > 1 + clip_high, or
    A < 0 and rho < 1 - clip_low; -A rho elsewhere, bounds included.

    clip_low, clip_high   relative to 1

    Source: PPO, arXiv 1707.06347, eq. 7. Clip-higher (DAPO, arXiv 2503.14476) is 0.2 / 0.28; GSPO (arXiv 2507.18071)
    is 3e-4 / 4e-4 on the sequence ratio, where 0.2 would never bind. No clamp on the log-ratio (verl: +-20).
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"objective.clip_low and objective.clip_high are widths, >= 0, not {self.clip_low}, {self.clip_high}"
            )

    def loss(self, x: Entries) -> Tensor:
        rising, falling = x.ratio.clamp_max(1 + self.clip_high), x.ratio.clamp_min(1 - self.clip_low)
        return -x.credit * torch.where(x.credit >= 0, rising, falling)

    def clipped(self, x: Entries) -> Tensor:
        high, low = x.ratio > 1 + self.clip_high, x.ratio < 1 - self.clip_low
        return ((x.credit > 0) & high) | ((x.credit < 0) & low)


@dataclass(frozen=True)
class DualClip(Clip):
    """`Clip`, and min(that, -A ratio_max) for A < 0: no gradient there where rho > ratio_max either.

    ratio_max   absolute, above 1 (3.0 means rho <= 3)

    Source: Ye et al., arXiv 1912.09729; the same as holding rho <= delta = ratio_max for A < 0 (INTELLECT-2).
    """

    ratio_max: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ratio_max > 1:
            raise ConfigError(f"objective.ratio_max is {self.ratio_max}; it is an absolute bound above 1, such as 3.0")

    def loss(self, x: Entries) -> Tensor:
        held = torch.where(x.credit < 0, x.ratio.clamp_max(self.ratio_max), x.ratio)
        return super().loss(replace(x, ratio=held))

    def clipped(self, x: Entries) -> Tensor:
        return super().clipped(x) | ((x.credit < 0) & (x.ratio > self.ratio_max))


@dataclass(frozen=True)
class LogClip(Gate):
    """Each token's log-ratio is held on the improving side, then the ratio is taken: for a sequence ratio the
    geometric mean of the held tokens.

    log rho' = min(log rho, log_clip_high) for A >= 0, max(log rho, -log_clip_low) for A < 0;   loss = -A rho'

    log_clip_low, log_clip_high   in log space: 0.4 holds rho in (e^-0.4, e^0.4)

    Source: GMPO, arXiv 2507.20673 (with ratio "sequence" and `sequence_mean`); unclipped it equals unclipped GSPO.
    """

    log_clip_low: float = 0.4
    log_clip_high: float = 0.4

    def __post_init__(self) -> None:
        if self.log_clip_low < 0 or self.log_clip_high < 0:
            raise ConfigError(
                "objective.log_clip_low and objective.log_clip_high are widths, >= 0, not "
                f"{self.log_clip_low}, {self.log_clip_high}"
            )

    def before(self, log_ratio: Tensor, credit: Tensor) -> Tensor:
        rising, falling = log_ratio.clamp_max(self.log_clip_high), log_ratio.clamp_min(-self.log_clip_low)
        return torch.where(credit >= 0, rising, falling)

    def clipped(self, x: Entries) -> Tensor:
        high, low = x.log_ratio > self.log_clip_high, x.log_ratio < -self.log_clip_low
        return ((x.credit > 0) & high) | ((x.credit < 0) & low)


@dataclass(frozen=True)
class Truncate(Gate):
    """-stop(clip(rho, ratio_min, ratio_max)) A logprob: the weight is bounded, every token keeps its gradient.

    ratio_max   absolute: 1.28 means rho <= 1.28. On policy the coefficient is exactly 1 for every ratio_max >= 1.
                (Elsewhere the same setting is written 0.28, or means an absolute bound by that name.)
    ratio_min   absolute; 0: no lower bound

    The value of the loss has no meaning; its gradient is -clip(rho, ratio_min, ratio_max) A grad logprob.

    Source: CISPO, MiniMax-M1, arXiv 2506.13585, eq. 4-5; the paper disables the lower bound and does not publish the
    upper one: 1.28 is the bound of clip-higher.
    """

    ratio_max: float = field(default=1.28, metadata={"unbounded": True})
    ratio_min: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.ratio_max <= math.inf:
            raise ConfigError(f"objective.ratio_max is {self.ratio_max}; it is an absolute bound above 0, such as 1.28")
        if not 0 <= self.ratio_min <= self.ratio_max:
            raise ConfigError(f"objective.ratio_min is {self.ratio_min}; it is from 0 to ratio_max ({self.ratio_max})")

    def loss(self, x: Entries) -> Tensor:
        return -x.ratio.detach().clamp(self.ratio_min, self.ratio_max) * x.credit * x.logprob

    def clipped(self, x: Entries) -> Tensor:
        return (x.credit != 0) & (x.ratio > self.ratio_max)
