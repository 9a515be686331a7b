"""Step advantages at the forks of a tree (PORTool): the value of a step against its siblings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.relative import group_relative
from gxpo.base.errors import one_of
from gxpo.forest import grouped
from gxpo.forest.grouped import dense
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


class Forks(NamedTuple):
    """Steps of a tree, a row for every (trajectory, step) by trajectory, then time; [S] each.

    trajectory  index into R
    place       dense ids of (group, step): rows of trajectories that share the step are equal
    fork        dense ids of (group, step before): the places of one fork are compared; -1 = no fork
    """

    trajectory: Tensor
    place: Tensor
    fork: Tensor


@torch.no_grad()
def step_value(
    outcome: Tensor,
    forks: Forks,
    decay: float = 1.0,
    discount_from: str = "end",
    bonus: Tensor | None = None,
    where: Tensor | None = None,
) -> Tensor:
    """Step value R(s): mean over the trajectories i through step s of decay^d outcome_i, + bonus(s); [S] float64.

    outcome        [R] any float dtype; the arithmetic is in float64
    discount_from  d counts: "end", the turns that trajectory i has after s; "begin", those before s
    bonus          [S] of each step by itself, the mean over the rows of a place (default: 0)
    where          [R] bool, compared (default: all): trajectories whose outcomes make R; a step that none of them took
                   has the mean over those that did
    """
    one_of("credit.discount_from", discount_from, ("end", "begin"))
    owner, place_S = forks.trajectory, forks.place
    # Rows are by trajectory: the first of each gives the turns before and after every step.
    first_row = torch.searchsorted(owner, owner)
    turns_before = torch.arange(len(owner)) - first_row
    turns_after = torch.bincount(owner, minlength=len(outcome))[owner] - 1 - turns_before
    value = outcome.to(torch.float64)[owner] * decay ** (turns_after if discount_from == "end" else turns_before).to(
        torch.float64
    )
    is_counted_S = torch.ones_like(owner, dtype=torch.bool) if where is None else where[owner]
    # A step that no compared trajectory took still needs a value: of those that did.
    is_counted_S = is_counted_S | (grouped.count(place_S, is_counted_S) == 0)
    mean = grouped.mean(value, place_S, is_counted_S)
    return mean if bonus is None else mean + grouped.mean(bonus, place_S, is_counted_S)


@torch.no_grad()
def fork_relative(value: Tensor, forks: Forks, ddof: int = 1, eps: float = 1e-6, where: Tensor | None = None) -> Tensor:
    """Fork-relative advantage: A(s) = (R(s) - mean) / (std + eps) over the steps at one fork, each counted once.

    value  [S] the same in all rows of a place
    where  [R] bool, compared (default: all): a step enters the statistics where one of them took it

    Returns [S] float64, exactly 0 without a fork, for a step without siblings, and where siblings are equal.

    Source: PORTool, arXiv 2510.26020, after summaries.
    """
    owner, place_S = forks.trajectory, forks.place
    # One row stands for a step that several trajectories share, so that it counts once.
    first_row = torch.full((int(place_S.max()) + 1 if len(place_S) else 0,), len(place_S))
    first_row = first_row.scatter_reduce_(0, place_S, torch.arange(len(place_S)), "amin")
    is_counted = (
        torch.ones_like(first_row, dtype=torch.bool)
        if where is None
        else grouped.count(place_S, where[owner])[first_row] > 0
    )
    return group_relative(value[first_row], forks.fork[first_row], ddof=ddof, eps=eps, where=is_counted)[place_S]


def forks_of(forest: Forest, first_steps: bool = False) -> Forks:
    """Build the steps of a forest; with `first_steps` those at the prompt are a fork of their group, too.

    Steps are one where a declared fork shares the whole action, and siblings where they come after one step.
    """
    group, owner, node = forest.ids("group", axis="S"), forest.step_trajectory, forest.step_action
    has_previous = torch.zeros(len(owner), dtype=torch.bool)
    has_previous[1:] = owner[1:] == owner[:-1]
    # Siblings follow one stored action; 0 is the prompt, so nodes are counted from 1.
    previous_node = torch.where(has_previous, node.roll(1) + 1, 0)
    fork_S = dense(group * (forest.n_nodes + 1) + previous_node)
    place_S = dense(group * forest.n_nodes + node)
    return Forks(owner, place_S, fork_S if first_steps else torch.where(has_previous, fork_S, -1))


@column("")
def forks(forest: Forest, *, first_steps: bool = False) -> Forks:
    """Steps of the forest."""
    return forks_of(forest, first_steps)


@column("")
def bonus(forest: Forest, *, well_formed: float = 0.0) -> Tensor | None:
    """Bonus [S] for actions that the environment could carry out: their info has no "action_error"."""
    is_well_formed = forest.ids("step_info.action_error", axis="S") < 0 if well_formed else None
    return None if is_well_formed is None else well_formed * is_well_formed.to(torch.float64)


@part("fork_relative", stage="credit", axis="R", gives="S", requires=("forks",))
def fork_advantage(
    outcome: Tensor,
    group: Tensor,
    forks: Forks,
    bonus: Tensor | None,
    where: Tensor | None = None,
    *,
    trajectory_weight: float = 1.0,
    fork_weight: float = 1.0,
    decay: Annotated[float, Interval(ge=0, le=1)] = 0.95,
    discount_from: Literal["end", "begin"] = "end",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """Fork advantage (PORTool): trajectory_weight * z_group(outcome) + fork_weight * `fork_relative`, [S] float64.

    outcome, group, where  [R]: see `group_relative`
    forks                  with `first_steps`, the first steps of a group's trajectories are compared at a fork, too
    bonus                  [S], `well_formed` for a step whose action the environment could carry out
    decay, discount_from   of the outcome of each trajectory through a step: see `step_value`

    Trajectories of equal outcome have the first summand 0, but their steps may differ: the decay pays for what leads
    to the end sooner. Without forks the second summand is 0, and with `trajectory_weight` 1 this is GRPO.
    """
    # GRPO's advantage of the trajectory, and that of the step against its siblings, add up.
    outcome_advantage_R = group_relative(outcome, group, ddof=ddof, eps=eps, where=where)
    fork_advantage_S = fork_relative(
        step_value(outcome, forks, decay, discount_from, bonus, where), forks, ddof, eps, where
    )
    return trajectory_weight * outcome_advantage_R[forks.trajectory] + fork_weight * fork_advantage_S
