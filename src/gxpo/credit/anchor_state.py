"""Credit of a step: what followed it, against the steps of the group that began in the same environment state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import Center, Scale, Single, group_relative
from gxpo.credit.recursion import next_in
from gxpo.credit.state_keys import StateKeyed, history_ids
from gxpo.errors import ConfigError, one_of

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
    *,
    unit: str = "trajectory",
    single: str = "zero",
    single_state: str = "zero",
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
    unit             what A^E is taken over: "trajectory", or "step": a trajectory as often as it has turns
    single           A^E of a group of one `unit`: "zero", or its outcome "raw" (over 1 + eps, where something scales)
    single_state     A^S of a state met once: "zero", or its return "raw", likewise

    Returns [S] float64. Every (trajectory, turn) counts once, the same state met twice in a trajectory twice. A state
    met once, an unknown state, and steps of one state with equal returns have A^S exactly 0; a group of one has A^E
    exactly 0. Without repeated states, or with step_weight 0, this is `group_relative`.

    Source: GiGPO, arXiv 2505.10978; reference code (verl-agent). With these settings this is
      verl-agent  unit step, single raw, scale none (its scripts for ALFWorld: std)
      Trinity     single raw, scale none, discount 1; it compares equal states of different tasks too, which this
                  does not
      ROLL        unit step, with its `mean_std`
      RAGEN       single raw, single_state raw
    """
    compared = torch.ones_like(group, dtype=torch.bool) if where is None else where
    in_steps = compared[step_trajectory]
    if unit == "step":
        rows = (outcome[step_trajectory], group[step_trajectory])
        episode = group_relative(*rows, center, scale, ddof, eps, where=in_steps, single=single)
    else:
        each = group_relative(outcome, group, center, scale, ddof, eps, where=compared, single=single)
        episode = each[step_trajectory]
    step = group_relative(step_return, state, center, scale, ddof, eps, where=in_steps, single=single_state)
    return episode + step_weight * step


@dataclass(frozen=True)
class AnchorState(StateKeyed, CreditPart):
    """`anchor_state` (GiGPO) of the outcomes and returns, the same for every token of a step.

    history  states before it that must be equal too for two steps to be in one group; steps with fewer before them are
             compared with those that began their trajectory in the same way

    `scale` "none" is the paper's F_norm = 1. Trajectories of equal outcome have A^E 0, but their steps may differ:
    from one state the shorter way has the larger discounted return.
    """

    discount: float = 0.95
    step_weight: float = 1.0
    center: Center = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6
    history: int = 0
    unit: Literal["trajectory", "step"] = "trajectory"
    single: Single = "zero"
    single_state: Single = "zero"

    def __post_init__(self) -> None:
        one_of("credit.center", self.center, ("mean", "leave_one_out", "median", "none"))
        one_of("credit.scale", self.scale, ("std", "none"))
        one_of("credit.unit", self.unit, ("trajectory", "step"))
        one_of("credit.single", self.single, ("zero", "raw"))
        one_of("credit.single_state", self.single_state, ("zero", "raw"))
        if self.history < 0:
            raise ConfigError(f"credit.history is {self.history}; it is a number of states, 0 or more")
        self.check_keys()
        if self.center == "none" and self.scale == "none":
            object.__setattr__(self, "on_equal", "signal")

    def steps(self, forest: Forest) -> tuple[Tensor, Tensor]:
        """[S] what each step is worth, and [S] ids of the groups that its worth is compared in."""
        state = self.states(forest)
        if self.history:
            state = history_ids(state, next_in(forest.step_trajectory, state >= 0), self.history, whole=False)[-1]
        return forest.returns(self.discount), state

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        worth, state = self.steps(forest)
        advantage = anchor_state(
            forest.outcome,
            forest.ids("group", axis="R"),
            worth,
            state,
            forest.step_trajectory,
            self.step_weight,
            self.center,
            self.scale,
            self.ddof,
            self.eps,
            where=forest.compared,
            unit=self.unit,
            single=self.single,
            single_state=self.single_state,
        )
        return forest.to_path(advantage, "S")
