"""Advantages averaged over equal steps of the group's trajectories (SALT)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.state_keys import Moves, action_ids, combined, history_ids
from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@column("S")
def edge(forest: Forest, moves: Moves, *, history: Annotated[int, Ge(0)] = 1) -> Tensor:
    """Ids of (history, state, action, next state). Actions are equal token by token; a step with fewer states before it
    is equal to those that began their trajectory in the same way. The last action leads to `final_state`."""
    here = history_ids(moves.before, moves.following, history, whole=False)[-1]
    return combined(here, action_ids(forest), moves.after)


@part("shared_edges", stage="credit", axis="S")
def shared_edges(advantage: Tensor, edge: Tensor, where: Tensor | None = None) -> Tensor:
    """Edge-averaged group-relative advantage (SALT): the mean over the steps that are the same edge.

    advantage  [S] of each step's trajectory, `group_relative` with `center`, `scale`, `ddof` and `eps`: GRPO's here;
               "leave_one_out" and "none" are RLOO's
    edge       [S] int64 dense ids of (history, state, action, next state) inside a group, `history` states before the
               step; -1: like no other, as the last step is where the state after it is not known, or where states are
               told by observations
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
