"""The ratio of the whole trajectory: the product of its tokens' ratios."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.ratio import Ratio


@dataclass(frozen=True)
class SequenceSum(Ratio):
    """log s_{i,t} = stop(sum over trajectory i of log rho) + log rho_t - stop(log rho_t).

    log_ratio_max  the sum is held in [-log_ratio_max, log_ratio_max], so that no ratio overflows; the gradient is not

    The value is pi(y) / mu(y), each token carries its own gradient, and the gradients of a trajectory's terms sum to
    that of the product. Not normalised by length: a long trajectory's ratio is soon far from 1, so it is for gates
    that bound it. Source: TOPR, arXiv 2503.14286; VESPO, arXiv 2602.10693.
    """

    log_ratio_max: float = 20.0

    couples = "trajectory"

    def __post_init__(self) -> None:
        if not 0 < self.log_ratio_max <= 80:
            raise ConfigError(f"objective.log_ratio_max is {self.log_ratio_max}; it is above 0, at most 80")

    def level(self, log_ratio: Tensor, trajectory: Tensor, turn: Tensor) -> Tensor:
        held = log_ratio.detach()
        n = int(trajectory.max()) + 1 if trajectory.numel() else 0
        total = held.new_zeros(n, dtype=torch.float64).index_add_(0, trajectory, held.to(torch.float64))
        whole = total.clamp(-self.log_ratio_max, self.log_ratio_max).to(held)
        return whole[trajectory] + (log_ratio - held)
