"""Weights for tokens that were sampled by something other than the policy being trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def truncated(proximal: Tensor, behaviour: Tensor, cap: float = 2.0) -> Tensor:
    """w = min(proximal probability / behaviour probability, cap) of each token.

    proximal   [P] log-probs of the learner's policy at the start of the step
    behaviour  [P] log-probs of who sampled, of the distribution that was sampled from (temperature, support)
    cap        absolute bound, finite

    Returns [P] float64, detached, in [0, cap]. Where a log-prob is unknown (nan) the weight is 1: there is no mismatch
    that could be measured, and what to do with such a token is the ratio's `on_unknown_behaviour`.

    Source: truncated importance sampling (TIS): Espeholt et al., arXiv 1802.01561, for language models Yao et al.
    2025; decoupled PPO, arXiv 2110.00641, is the same form. As in verl and TRL (cap 2).
    """
    log_weight = proximal.to(torch.float64) - behaviour.to(torch.float64)
    log_weight = torch.where(log_weight.isnan(), torch.zeros_like(log_weight), log_weight)
    return log_weight.exp().clamp_max(cap)


@dataclass(frozen=True)
class Truncated(WeightPart):
    """`truncated` per token (TIS). Use it where the ratio is taken over the proximal policy.

    Over the behaviour policy (`objective.ratio_over: behaviour`) the ratio corrects the mismatch itself, and this
    weight would count it twice.
    """

    cap: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.cap < math.inf:
            raise ConfigError(f"weight.cap is {self.cap}; it is a finite absolute bound above 0, such as 2.0")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        return truncated(signals["proximal_logprob"], signals["behaviour_logprob"], self.cap)
