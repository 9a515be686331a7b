"""Sure answers count more, hesitant ones less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart
from gxpo.weighting.trajectory import counting, trajectory_mean

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def relative_entropy(entropy: Tensor, where: Tensor, least: float = 0.1, most: float = 10.0) -> Tensor:
    """w_i = mean of all H / H_i, held in [least, most]; [R] float64.

    entropy [R] mean entropy of each trajectory's tokens, nats; where [R] bool, over whom the mean is taken
    1 where H_i is the mean (to 1e-5 nats), also at 0, and where nobody counts.

    >>> relative_entropy(torch.tensor([0.25, 0.5, 0.75]), torch.ones(3).bool()).tolist()
    [2.0, 1.0, 0.6666666666666666]
    """
    own, one = entropy.to(torch.float64).clamp_min(0.0), torch.zeros(entropy.shape, dtype=torch.int64)
    mean = levels.mean(own, one, where)
    same = ((own - mean).abs() <= levels.FORWARD) | (levels.count(one, where) == 0)
    return torch.where(same, 1.0, mean / torch.where(same, 1.0, own)).clamp(least, most)


@dataclass(frozen=True)
class RelativeEntropy(WeightPart):
    """`relative_entropy` of the policy at the start of the step, over the compared trajectories of the step.

    least, most  bounds of the weight; 0 and .inf: none, and an answer without any entropy is an error

    Reads signal `entropy`; nothing flows back through it. Source: EDGE-GRPO, arXiv 2507.21848.
    """

    least: float = 0.1
    most: float = 10.0

    needs = ("entropy",)

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1 <= self.most:
            raise ConfigError(
                f"weight.relative_entropy.least ({self.least}) is from 0 to 1, .most ({self.most}) at least 1"
            )

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        entropy = trajectory_mean(forest, signals, "entropy")
        return forest.to_path(relative_entropy(entropy, counting(forest), self.least, self.most), "R")
