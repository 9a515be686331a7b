"""Advantages averaged over equal steps of the group's trajectories (SALT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo import grouped
from gxpo.credit.relative import Statistic
from gxpo.credit.state_keys import StateKeyed, action_ids, combined, history_ids
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def shared_edges(advantage: Tensor, edge: Tensor, where: Tensor | None = None) -> Tensor:
    """Mean advantage over the steps that are the same edge.

    advantage  [S] of each step's trajectory
    edge       [S] int64 dense ids of (history, state, action, next state) inside a group; -1: like no other
    where      [S] bool, compared (default: all): which enter the means; another step is averaged with those of its edge
               that do, and changes no other

    Returns [S] float64. The sum over the compared steps stays what it was; a step that all trajectories of a group
    share has the mean of their advantages, 0 for GRPO; without equal edges nothing changes. An edge taken twice in a
    trajectory counts twice.

    Sums by (state, action) stay what they were too. So for a policy that sees the state and nothing else, on-policy
    and with every token in one mean, the gradient is that of the advantages unmerged: only a policy that sees more than
    the state, ratios other than 1 or clipping make a difference.

    Source: SALT, arXiv 2510.20022, reconstructed from its abstract and an overview. The opposite of `StateRelative`,
    which sets different actions of one state against each other.
    """
    advantage = advantage.to(torch.float64)
    enters = torch.ones_like(edge, dtype=torch.bool) if where is None else where
    guest = torch.where(enters, 0.0, 1.0)
    total = grouped.sum(advantage, edge, enters) + guest * advantage
    return torch.where(edge >= 0, total / (grouped.count(edge, enters) + guest), advantage)


@part("shared_edges", stage="credit")
@dataclass(frozen=True)
class SharedEdges(StateKeyed, Statistic):
    """Edge-averaged group-relative advantage (SALT): `shared_edges` of the outcome, the same for every token of a step.

    center, scale, ddof, eps  of `group_relative`: GRPO's here; "leave_one_out" and "none" are RLOO's
    history                   states before the step that must be equal too. A step with fewer before it is equal to
                              those that began their trajectory in the same way

    Actions are equal token by token. The last action of a trajectory leads to `final_state`; where that is not known
    (and where states are told by observations) it is like no other.
    """

    history: Annotated[int, Ge(0)] = 1

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        moves = self.moves(forest)
        here = history_ids(moves.before, moves.following, self.history, whole=False)[-1]
        edge = combined(here, action_ids(forest), moves.after)
        own = forest.step_trajectory
        return forest.to_path(shared_edges(self.of_outcome(forest)[own], edge, forest.compared[own]), "S")
