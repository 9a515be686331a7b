"""What a plan is worth, by how often it was carried out with success, is paid to everyone who had it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart


def plan_success(success: Tensor, plan: Tensor) -> Tensor:
    """[R] float64: the mean verdict of the trajectories of each plan; nan where none has a verdict.

    success [R] verdicts, nan unknown; plan [R] ids of the plans, -1 = none, which gives nan

    >>> import torch
    >>> plan_success(torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1])).tolist()
    [0.5, 0.5, 1.0, 1.0]
    """
    known = success.isfinite()
    share = levels.mean(success.nan_to_num(nan=0.0), plan, known)
    return share.masked_fill(levels.count(plan, known) == 0, math.nan)


@dataclass(frozen=True)
class PlanSuccess(RewardPart):
    """`reward.add`: `weight` times `plan_success` over the trajectories of the group with one info["plan"].

    A trajectory without a plan, or whose plan's executions have no verdict, is paid nothing; its own counts as any
    other. Reads `success`, which no reward shapes. Source: PTA-GRPO, arXiv 2510.01833, whose weight we do not know.
    """

    weight: float = 0.5

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ConfigError(f"plan_success.weight is {self.weight}; it is a finite number, such as 0.5")

    def __call__(self, forest: Forest) -> Mapping[str, Tensor]:
        share = plan_success(forest.success, forest.ids("group", "info.plan", axis="R"))
        return {"plan_success": self.weight * share.nan_to_num(nan=0.0)}
