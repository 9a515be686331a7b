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
    place       dense ids: rows of one group and one step, which trajectories share, are equal
    fork        dense ids of (group, the step before): the places of one fork are compared; -1 = no fork
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
    """R(s) = mean over the trajectories i through step s of decay^d outcome_i, + bonus(s); [S] float64.

    outcome        [R] any float dtype; the arithmetic is in float64
    discount_from  what d counts: "end", the turns that trajectory i has after s; "begin", those before s
    bonus          [S] of each step by itself, the mean over the rows of a place (default: 0)
    where          [R] bool, compared (default: all): whose outcomes make R; a step that none of them took has the mean
                   over those that did
    """
    one_of("credit.discount_from", discount_from, ("end", "begin"))
    own, place = forks.trajectory, forks.place
    begin = torch.searchsorted(own, own)
    depth = torch.arange(len(own)) - begin
    ahead = torch.bincount(own, minlength=len(outcome))[own] - 1 - depth
    value = outcome.to(torch.float64)[own] * decay ** (ahead if discount_from == "end" else depth).to(torch.float64)
    enters = torch.ones_like(own, dtype=torch.bool) if where is None else where[own]
    enters = enters | (grouped.count(place, enters) == 0)
    mean = grouped.mean(value, place, enters)
    return mean if bonus is None else mean + grouped.mean(bonus, place, enters)


@torch.no_grad()
def fork_relative(value: Tensor, forks: Forks, ddof: int = 1, eps: float = 1e-6, where: Tensor | None = None) -> Tensor:
    """A(s) = (R(s) - mean) / (std + eps) over the steps taken at one fork, each counted once.

    value  [S] the same in all rows of a place
    where  [R] bool, compared (default: all): a step enters the statistics where one of them took it

    Returns [S] float64, exactly 0 without a fork, for a step without siblings, and where siblings are equal.

    Source: PORTool, arXiv 2510.26020, after summaries.
    """
    own, place = forks.trajectory, forks.place
    first = torch.full((int(place.max()) + 1 if len(place) else 0,), len(place))
    first = first.scatter_reduce_(0, place, torch.arange(len(place)), "amin")
    counted = torch.ones_like(first, dtype=torch.bool) if where is None else grouped.count(place, where[own])[first] > 0
    return group_relative(value[first], forks.fork[first], ddof=ddof, eps=eps, where=counted)[place]


def forks_of(forest: Forest, first_steps: bool = False) -> Forks:
    """Steps of the forest; `first_steps`: the steps at the prompt are a fork of their group, too.

    Steps are one where a declared fork shares the whole action, and siblings where they come after one step.
    """
    group, own, node = forest.ids("group", axis="S"), forest.step_trajectory, forest.step_action
    goes_on = torch.zeros(len(own), dtype=torch.bool)
    goes_on[1:] = own[1:] == own[:-1]
    before = torch.where(goes_on, node.roll(1) + 1, 0)
    fork = dense(group * (forest.n_nodes + 1) + before)
    place = dense(group * forest.n_nodes + node)
    return Forks(own, place, fork if first_steps else torch.where(goes_on, fork, -1))


@column("")
def forks(forest: Forest, *, first_steps: bool = False) -> Forks:
    """Steps of the forest."""
    return forks_of(forest, first_steps)


@column("")
def bonus(forest: Forest, *, well_formed: float = 0.0) -> Tensor | None:
    """[S] for actions that the environment could carry out, which noted no "action_error"."""
    carried_out = forest.ids("step_info.action_error", axis="S") < 0 if well_formed else None
    return None if carried_out is None else well_formed * carried_out.to(torch.float64)


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
    """A = trajectory_weight * z_group(outcome) + fork_weight * `fork_relative` (PORTool), [S] float64.

    outcome, group, where  [R]: see `group_relative`
    forks                  with `first_steps`, the first steps of a group's trajectories are compared at a fork, too
    bonus                  [S], `well_formed` for a step whose action the environment could carry out
    decay, discount_from   of the outcome of each trajectory through a step: see `step_value`

    Trajectories of equal outcome have the first summand 0, but their steps may differ: the decay pays for what leads
    to the end sooner. Without forks the second summand is 0, and with `trajectory_weight` 1 this is GRPO.
    """
    over = group_relative(outcome, group, ddof=ddof, eps=eps, where=where)
    local = fork_relative(step_value(outcome, forks, decay, discount_from, bonus, where), forks, ddof, eps, where)
    return trajectory_weight * over[forks.trajectory] + fork_weight * local
