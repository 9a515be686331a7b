"""Credit of a step: what followed it, against the steps of the group that began in the same environment state."""

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
def anchor_state(
    outcome: Tensor,
    group: Tensor,
    step_return: Tensor,
    state: Tensor,
    step_trajectory: Tensor,
    step_weight: float = 1.0,
    center: str = "mean",
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    where: Tensor | None = None,
) -> Tensor:
    """A = A^E + step_weight * A^S for every step.

    A^E  (outcome - center) / (scale + eps) over the trajectories of the group (eq. 3)
    A^S  (step_return - center) / (scale + eps) over the steps of the group in the same state (eq. 7)

    outcome          [R]
    group            [R] int64 dense ids, -1 = in no group
    step_return      [S] discounted sum of the step rewards from the step on, in its own trajectory (eq. 5)
    state            [S] int64 dense ids of (group, state), -1 = unknown; never shared between groups
    step_trajectory  [S] index into R
    where            [R] bool, compared (default: all): whose outcomes and steps enter the statistics

    Returns [S] float64. Every (trajectory, turn) counts once, the same state met twice in a trajectory twice. A state
    met once, an unknown state, and steps of one state with equal returns have A^S exactly 0; a group of one has A^E
    exactly 0. Without repeated states, or with step_weight 0, this is `group_relative`.

    Source: GiGPO, arXiv 2505.10978; reference code (verl-agent). That code differs by default in two ways: A^E is
    taken over steps, so that long trajectories weigh more, and a group of one keeps its raw score.
    """
    compared = torch.ones_like(group, dtype=torch.bool) if where is None else where
    episode = group_relative(outcome, group, center, scale, ddof, eps, where=compared)
    step = group_relative(step_return, state, center, scale, ddof, eps, where=compared[step_trajectory])
    return episode[step_trajectory] + step_weight * step


@dataclass(frozen=True)
class AnchorState(CreditPart):
    """`anchor_state` (GiGPO) of the outcomes and returns, the same for every token of a step.

    `scale` "none" is the paper's F_norm = 1. Trajectories of equal outcome have A^E 0, but their steps may differ:
    from one state the shorter way has the larger discounted return.
    """

    discount: float = 0.95
    step_weight: float = 1.0
    center: Center = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6

    requires = ("states",)

    def __post_init__(self) -> None:
        one_of("credit.center", self.center, ("mean", "leave_one_out", "median", "none"))
        one_of("credit.scale", self.scale, ("std", "none"))
        if self.center == "none" and self.scale == "none":
            object.__setattr__(self, "on_equal", "signal")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        advantage = anchor_state(
            forest.outcome,
            forest.ids("group", axis="R"),
            forest.returns(self.discount),
            forest.ids("state", axis="S"),
            forest.step_trajectory,
            self.step_weight,
            self.center,
            self.scale,
            self.ddof,
            self.eps,
            where=forest.compared,
        )
        return forest.to_path(advantage, "S")
