"""Step advantages by environment state: anchor states (GiGPO), equal histories (HGPO), equal edges (SALT)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.recursion import next_in
from gxpo.algorithms.credit.relative import Relative, Rows, Unit
from gxpo.algorithms.credit.state_keys import Moves, StateKeyed, action_ids, combined, history_ids
from gxpo.base.errors import one_of
from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@part("state_relative", stage="credit")
@dataclass(frozen=True)
class StateRelative(StateKeyed, Relative):
    """Anchor-state advantage: `Relative` among the group's steps from the same state; GiGPO is `Relative()` plus this.

    history  states before it that must be equal too for two steps to be in one group; steps with fewer before them are
             compared with those that began their trajectory in the same way

    Every (trajectory, turn) counts once, the same state met twice in a trajectory twice. Exactly 0 for a state met
    once, an unknown state, and steps of one state with equal returns. Trajectories of equal outcome may differ in their
    steps: from one state the shorter way has the larger discounted return.

    GraphGPO is `Relative()` plus this with value graph_return, discount 0.1.

    Source: GiGPO, arXiv 2505.10978, eq. 5 and 7; reference code (verl-agent). For the sum of both levels, with
    `credit.add.state.*` for this one's options,
      verl-agent  unit step, singleton raw, scale none (its scripts for ALFWorld: std)
      Trinity     singleton raw, scale none, discount 1; it compares equal states of different tasks too, which this
                  does not
      ROLL        unit step, with its `mean_std`
      RAGEN       singleton raw, for the states too
    """

    value: str = "return"
    unit: Unit = "step"
    discount: Annotated[float, Interval(ge=0, le=1)] = 0.95
    history: Annotated[int, Interval(ge=0)] = 0

    def is_centred(self) -> bool:
        return False  # peers are steps from one state, not a group's trajectories

    def learns_from_equal(self) -> bool:
        """Return True if nothing is centred or scaled; the published recipes drop groups of equal outcomes."""
        return self.center == "none" and self.scale == "none"

    def peers(self, forest: Forest, rows: Rows) -> Tensor:
        state = self.states(forest)
        # Shorter histories count as equal where they began alike: otherwise first steps would have no peers.
        if self.history:
            state = history_ids(
                state, next_in(forest.step_trajectory, state >= 0), self.history, needs_full_history=False
            )[-1]
        # A state's id holds its group already; further levels are combined with it.
        further_levels = tuple(level for level in self.group_by if level != "group")
        state = rows.take(state, "S")
        return combined(state, super().peers(forest, rows)) if further_levels else state


@column("S")
def step_return(forest: Forest, *, discount: float = 0.95) -> Tensor:
    """Discounted sum of the step rewards from the step on."""
    return forest.returns(discount)


@column("S")
def keys(state: Tensor, trajectory: Tensor, *, history: Annotated[int, Ge(0)] = 2) -> list[Tensor]:
    """Ids of the state, of (previous state, state) and so on: `history` + 1 columns."""
    return history_ids(state, next_in(trajectory, state >= 0), history)


@part("history_groups", stage="credit", axis="S")
def history_groups(
    step_return: Tensor,
    keys: Sequence[Tensor],
    where: Tensor | None = None,
    *,
    alpha: float = 1.0,
    offset: Annotated[int, Ge(1)] = 1,
    ignore: Literal["equal", "zero", "none"] = "equal",
    scale: Literal["std", "none"] = "std",
    ddof: int = 0,
    eps: float = 1e-6,
) -> Tensor:
    """History-aware step advantage (HGPO): A = sum_h w_h A_h / sum_h w_h, over levels of equal history.

    A_h  (step_return - mean) / (std + eps), or without the std, over the steps with the same key of level h
    w_h  (h + offset)^alpha, where a step is compared with another

    step_return  [S] discounted sum of the step rewards from the step on
    keys         of each level, 0 first, [S] int64 dense ids (`history_ids`), -1 where the history is shorter. The last
                 level, `history`, is the largest number of states before the current one that are compared: what a
                 policy that sees a window of its history is conditioned on
    where        [S] bool, compared (default: all): steps that enter the statistics; the others are measured by them
    ignore       levels that do not count: "equal": where all returns are; "zero": also where the step's happens to be
                 the mean, by comparison with 0, so that rounding decides; "none": each counts that has another step

    Returns [S] float64; exactly 0 where there is nothing to compare: a step in a state that no other was in has none,
    in a successful trajectory too, since there is no level of whole trajectories (`credit.add.relative` adds one). With
    level 0 alone it is the step level of `StateRelative`; with alpha 0 the plain mean over levels.

    Source: HGPO, arXiv 2602.22817, and its code. The paper's weights are 1, 2, 3, ... (offset 1); the recipe in
    verl-agent has 2, 3, 4, ... and ignores zeros, with 1e-6 added to the sum of the weights.
    """
    one_of("credit.ignore", ignore, ("equal", "zero", "none"))
    is_compared_S = torch.ones_like(keys[0], dtype=torch.bool) if where is None else where
    weighted_sum = torch.zeros(step_return.shape, dtype=torch.float64)
    weight_sum = torch.zeros_like(weighted_sum)
    for h, ids in enumerate(keys):
        advantage = grouped.normalize(step_return, ids, is_compared_S, scale=scale, ddof=ddof, eps=eps)
        # A level counts for a step only where the step has a peer: others would pull the average towards 0.
        is_used_S = grouped.count(ids, is_compared_S) > is_compared_S.to(torch.float64)  # others are there
        # A step that is equal to its mean among unequal ones is informative; verl-agent drops it as well ("zero").
        if ignore == "equal":
            is_used_S &= ~grouped.degenerate(step_return, ids, is_compared_S) | (advantage != 0)
        elif ignore == "zero":
            is_used_S &= advantage != 0
        # Longer equal histories weigh more: their peers differ in less than the policy could see.
        weight = is_used_S * float(h + offset) ** alpha
        weighted_sum += weight * advantage
        weight_sum += weight
    return torch.where(weight_sum > 0, weighted_sum / weight_sum, 0.0)


@column("S")
def edge(forest: Forest, moves: Moves, *, history: Annotated[int, Ge(0)] = 1) -> Tensor:
    """Ids of (history, state, action, next state). Actions are equal token by token; a step with fewer states before it
    is equal to those that began their trajectory in the same way. The last action leads to `final_state`."""
    # A step near the start has fewer states before it; it is equal to those that began in the same way.
    state_with_history = history_ids(moves.before, moves.following, history, needs_full_history=False)[-1]
    return combined(state_with_history, action_ids(forest), moves.after)


@part("shared_edges", stage="credit", axis="S")
def shared_edges(advantage: Tensor, edge: Tensor, where: Tensor | None = None) -> Tensor:
    """Edge-averaged group-relative advantage (SALT): the mean over the steps that are the same edge.

    advantage  [S] of each step's trajectory, `group_relative` with `center`, `scale`, `ddof` and `eps`: GRPO's here;
               "leave_one_out" and "none" are RLOO's
    edge       [S] int64 dense ids of (history, state, action, next state) inside a group, `history` states before the
               step; -1: like no other, as the last step is where the state after it is not known, or where states are
               told by observations
    where      [S] bool, compared (default: all): steps that enter the means; another is averaged with those of its edge
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
    is_compared_S = torch.ones_like(edge, dtype=torch.bool) if where is None else where
    # A step that is not compared joins the mean of its edge as one more member, for itself alone.
    is_guest_S = torch.where(is_compared_S, 0.0, 1.0)
    total = grouped.sum(advantage, edge, is_compared_S) + is_guest_S * advantage
    return torch.where(edge >= 0, total / (grouped.count(edge, is_compared_S) + is_guest_S), advantage)
