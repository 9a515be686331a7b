"""Credit of a step: its trajectory's outcome within the group, and its own reward from a process reward model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import Center, Scale, group_relative
from gxpo.errors import one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def step_reward(
    outcome: Tensor,
    reward: Tensor,
    group: Tensor,
    step_trajectory: Tensor,
    step_weight: float = 1.0,
    center: str = "mean",
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    where: Tensor | None = None,
) -> Tensor:
    """A = A^E + step_weight * A^S for every step.

    A^E  (outcome - center) / (scale + eps) over the trajectories of the group
    A^S  (reward - center) / (scale + eps) over all steps of the group, of whatever turn

    outcome          [R]
    reward           [S] of each step by itself: neither discounted nor summed over what follows
    group            [R] int64 dense ids, -1 = in no group
    step_trajectory  [S] index into R
    where            [R] bool, compared (default: all): whose outcomes and steps enter the statistics

    Returns [S] float64. Every (trajectory, turn) counts once: a trajectory of many turns moves A^S's statistics more.
    Equal rewards (a process reward model that still is the policy) have A^S exactly 0, and this is `group_relative`.

    Source: iStar / OPRL, arXiv 2509.19199; ddof and eps are those of its code with a std.
    """
    compared = torch.ones_like(group, dtype=torch.bool) if where is None else where
    episode = group_relative(outcome, group, center, scale, ddof, eps, where=compared)
    own = group_relative(reward, group[step_trajectory], center, scale, ddof, eps, where=compared[step_trajectory])
    return episode[step_trajectory] + step_weight * own


@dataclass(frozen=True)
class StepReward(CreditPart):
    """`step_reward` of the outcomes and the signal "process_reward" [S], the same for every token of a step.

    In a group of equal outcomes A^E is 0, but its steps may differ: no filter may drop it.
    """

    step_weight: float = 1.0
    center: Center = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6

    needs = ("process_reward",)
    on_equal = "signal"

    def __post_init__(self) -> None:
        one_of("credit.center", self.center, ("mean", "leave_one_out", "median", "none"))
        one_of("credit.scale", self.scale, ("std", "none"))

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        advantage = self.among(forest, signals["process_reward"], forest.step_trajectory)
        return forest.to_path(advantage, "S")

    def among(self, forest: Forest, reward: Tensor, trajectory: Tensor) -> Tensor:
        """`step_reward` of things with a `reward` each, that the `trajectory` has."""
        return step_reward(
            forest.outcome,
            reward,
            forest.ids("group", axis="R"),
            trajectory,
            self.step_weight,
            self.center,
            self.scale,
            self.ddof,
            self.eps,
            where=forest.compared,
        )
