"""Step advantages at the forks of a tree (PORTool): the value of a step against its siblings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo import grouped
from gxpo.credit.base import CreditPart
from gxpo.credit.relative import group_relative
from gxpo.errors import one_of
from gxpo.registry import part
from gxpo.trees import dense

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


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


@part("fork_relative", stage="credit")
@dataclass(frozen=True)
class ForkRelative(CreditPart):
    """A = trajectory_weight * z_group(outcome) + fork_weight * `fork_relative`, the same for every token of a step.

    decay, discount_from  of the outcome of each trajectory through a step: see `step_value`
    well_formed           bonus of a step whose action the environment could carry out (it noted no
                          "action_error")
    first_steps           whether the first steps of a group's trajectories are compared at a fork, too

    Trajectories of equal outcome have the first summand 0, but their steps may differ: the decay pays for what leads
    to the end sooner. Without forks the second summand is 0, and with `trajectory_weight` 1 this is GRPO.
    """

    trajectory_weight: float = 1.0
    fork_weight: float = 1.0
    decay: Annotated[float, Interval(ge=0, le=1)] = 0.95
    discount_from: Literal["end", "begin"] = "end"
    well_formed: float = 0.0
    first_steps: bool = False
    ddof: int = 1
    eps: float = 1e-6

    requires = ("forks",)

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        outcome, compared, forks = forest.outcome, forest.compared, forks_of(forest, self.first_steps)
        group = forest.ids("group", axis="R")
        over = group_relative(outcome, group, ddof=self.ddof, eps=self.eps, where=compared)
        bonus = None
        if self.well_formed:
            carried_out = forest.ids("step_info.action_error", axis="S") < 0
            bonus = self.well_formed * carried_out.to(torch.float64)
        value = step_value(outcome, forks, self.decay, self.discount_from, bonus, compared)
        local = fork_relative(value, forks, self.ddof, self.eps, compared)
        return forest.to_path(self.trajectory_weight * over[forks.trajectory] + self.fork_weight * local, "S")
