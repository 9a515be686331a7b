"""Importance weights and masks for sampler-learner mismatch: truncated importance sampling (TIS), masking."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.algorithms.weighting.base import WeightPart
from gxpo.base.errors import ConfigError
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def truncated(proximal: Tensor, behaviour: Tensor, cap: float = 2.0) -> Tensor:
    """w = min(proximal probability / behaviour probability, cap) of each token.

    proximal   [P] log-probs of the learner's policy at the start of the step
    behaviour  [P] log-probs of the sampler, of the distribution that was sampled from (temperature, support)
    cap        absolute bound, finite

    Returns [P] float64, detached, in [0, cap]. Where a log-prob is unknown (nan) the weight is 1: there is no mismatch
    that could be measured, and what to do with such a token is the ratio's `on_unknown_behaviour`.

    Source: truncated importance sampling (TIS): Espeholt et al., arXiv 1802.01561, for language models Yao et al.
    2025; decoupled PPO, arXiv 2110.00641, is the same form. As in verl and TRL (cap 2).
    """
    log_weight = proximal.to(torch.float64) - behaviour.to(torch.float64)
    log_weight = torch.where(log_weight.isnan(), torch.zeros_like(log_weight), log_weight)
    return log_weight.exp().clamp_max(cap)


@torch.no_grad()
def agreeing(
    proximal: Tensor,
    behaviour: Tensor,
    trajectory: Tensor,
    where: Tensor,
    token: tuple[float, float] = (0.5, 2.0),
    sequence: tuple[float, float] = (0.0, math.inf),
) -> Tensor:
    """Mask: 1 where old and rollout policy agree on the token and on its trajectory, else 0; [P] float64.

    proximal, behaviour  [P] log-probs, as of `truncated`
    trajectory           [P] index;   where [P] bool, entries that are in their trajectory's mean: the trainable ones
    token                bounds, both included, of a token's own ratio of probabilities
    sequence             of the geometric mean of its trajectory's

    Unknown (nan) log-probs are in no mean and count as ratio 1.

    >>> at = torch.tensor([1.1, 0.9, 1.3], dtype=torch.float64).log()
    >>> same, row = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
    >>> agreeing(at, same, row, same == 0, (0.75, 1.25), (0.9, 1.1)).tolist()  # the geometric mean is 1.0877
    [1.0, 1.0, 0.0]
    """
    log_weight = proximal.to(torch.float64) - behaviour.to(torch.float64)
    is_known = ~log_weight.isnan()
    # an unknown ratio counts as 1 in the masks and is in no mean
    log_weight = torch.where(is_known, log_weight, torch.zeros_like(log_weight))
    counts_P = is_known & where
    n = int(trajectory.max()) + 1 if trajectory.numel() else 0
    total_R = torch.zeros(n, dtype=torch.float64).index_add_(0, trajectory[counts_P], log_weight[counts_P])
    mean_R = total_R / torch.bincount(trajectory[counts_P], minlength=n).clamp_min(1)
    token_ratio, sequence_ratio = log_weight.exp(), mean_R.exp()[trajectory]
    agrees = (
        (token_ratio >= token[0])
        & (token_ratio <= token[1])
        & (sequence_ratio >= sequence[0])
        & (sequence_ratio <= sequence[1])
    )
    return agrees.to(torch.float64)


@part("truncated", stage="weight")
@dataclass(frozen=True)
class Truncated(WeightPart):
    """Truncated importance sampling per token (TIS), for a ratio over the proximal policy: see `truncated`.

    Over the behaviour policy (`objective.ratio_over: behaviour`) the ratio corrects the mismatch itself, and this
    weight would count it twice.
    """

    cap: float = 2.0

    corrects_mismatch = True
    reads_mismatch = True

    def __post_init__(self) -> None:
        if not 0 < self.cap < math.inf:
            raise ConfigError(f"weight.cap is {self.cap}; it is a finite absolute bound above 0, such as 2.0")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        return truncated(signals["proximal_logprob"], signals["behaviour_logprob"], self.cap)


@part("mismatch_mask", stage="weight")
@dataclass(frozen=True)
class MismatchMask(WeightPart):
    """Mask out tokens and trajectories on which sampler and learner disagree: see `agreeing`.

    token_min, token_max        bounds of a token's ratio proximal / behaviour
    sequence_min, sequence_max  of the geometric mean of its trajectory's; by default every trajectory passes

    What is left out keeps its place in every denominator. Unlike `Truncated` it corrects nothing, so it goes with
    either denominator of the ratio; with `Truncated` it is IcePop, with the sequence bounds alone a sequence mask.

    Source: HisPO, arXiv 2603.21065 (both levels); the token bounds are TRL's.
    """

    token_min: float = 0.5
    token_max: float = field(default=2.0, metadata={"unbounded": True})
    sequence_min: float = 0.0
    sequence_max: float = math.inf

    reads_mismatch = True

    def __post_init__(self) -> None:
        for level in ("token", "sequence"):
            low, high = getattr(self, f"{level}_min"), getattr(self, f"{level}_max")
            if not 0 <= low <= 1 <= high:
                raise ConfigError(
                    f"weight.mismatch_mask.{level}_min is {low} and .{level}_max {high}; they are absolute bounds "
                    "around 1, where sampler and learner agree"
                )

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        return agreeing(
            signals["proximal_logprob"],
            signals["behaviour_logprob"],
            forest.path_trajectory,
            forest.path_trainable,
            (self.token_min, self.token_max),
            (self.sequence_min, self.sequence_max),
        )
