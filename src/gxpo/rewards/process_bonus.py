"""An outcome that a good way of getting there makes larger."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart
from gxpo.rewards.component import read_component


def with_bonus(outcome: Tensor, process: Tensor) -> Tensor:
    """R_out (1 + R_proc), float64: where the outcome is 0 it stays 0, whatever the process is worth.

    outcome, process [R]; process is from 0 to 1, nan unknown, which then makes any other outcome unknown.

    >>> with_bonus(torch.tensor([1.0, 0.0]), torch.tensor([2 / 4, 3 / 4])).tolist()
    [1.5, 0.0]
    """
    right = outcome.to(torch.float64)
    return torch.where(right == 0, right, right * (1 + process.to(torch.float64)))


@dataclass(frozen=True)
class ProcessBonus(RewardPart):
    """`reward.shape`: the outcome times 1 + component `component`, which some reward computes with weight 0.

    Search-R2's R_proc is the share of retrieved chunks that a judge finds useful. ConfigError where no reward computes
    the component, or where it is not from 0 to 1.

    Source: Search-R2, arXiv 2602.03647, eq. 1.
    """

    component: str = "process"

    def __call__(self, forest: Forest) -> Tensor:
        return with_bonus(forest.outcome, read_component(forest, self.component, "process_bonus"))
