"""Credit of an agent's call: the team's outcome against those of the same agent's other calls in the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.group_relative import GroupRelative

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def agent_relative(
    outcome: Tensor,
    agent: Tensor,
    step_trajectory: Tensor,
    center: str = "mean",
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    where: Tensor | None = None,
) -> Tensor:
    """A = (R - mean_{group, agent} R) / (std_{group, agent} R + eps) for every call.

    outcome          [R] of the whole attempt, the same for each of its calls
    agent            [S] int64 dense ids of (group, agent), -1 = in no group
    step_trajectory  [S] index into R
    center, scale    see `group_relative`; "leave_one_out" leaves out the call, not the attempt
    where            [R] bool, compared (default: all): whose calls enter the statistics

    Returns [S] float64. The statistics are over calls: an attempt in which the agent spoke twice counts twice for it,
    and one in which it did not speak is not there. Exactly 0 for the only call of an agent in a group, and for an agent
    whose calls all have one outcome. With one agent and one turn this is `group_relative`.

    Source: Dr. MAS, arXiv 2602.08847; reference code, which leaves the only call of an agent its raw outcome.
    """
    compared = None if where is None else where[step_trajectory]
    return levels.normalize(outcome[step_trajectory], agent, compared, center=center, scale=scale, ddof=ddof, eps=eps)


@dataclass(frozen=True)
class AgentRelative(GroupRelative):
    """`agent_relative` of the outcome, the same for every token of a call; settings as of `GroupRelative`."""

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        advantage = agent_relative(
            forest.outcome,
            forest.ids("group", "agent", axis="S"),
            forest.step_trajectory,
            self.center,
            self.scale,
            self.ddof,
            self.eps,
            where=forest.compared,
        )
        return forest.to_path(advantage, "S")
