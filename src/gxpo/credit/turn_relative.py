"""Step advantages among agents that act simultaneously, with a fairness term (OSPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo import grouped
from gxpo.credit.base import CreditPart
from gxpo.errors import ConfigError
from gxpo.registry import part
from gxpo.trees import sum_before

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def turn_relative(
    reward: Tensor,
    before: Tensor,
    time: Tensor,
    fairness: float = 1.0,
    ddof: int = 0,
    eps: float = 1e-8,
    where: Tensor | None = None,
) -> Tensor:
    """A = (reward - mean) / (std + eps) - fairness * (std(before + reward) - std(before)), over the steps of one time.

    reward    [S] of each step by itself, or what follows it, discounted
    before    [S] the sum of its trajectory's rewards until then
    time      [S] int64 dense ids of (group, time), -1 = in no group
    fairness  of the second part, the same for all at a time: what has made earnings more unequal costs
    ddof      of the first std; the others are the population's
    where     [S] bool, compared (default: all); the others are measured against the compared

    Returns [S] float64; sum 0 at each time without `fairness`. Exactly 0 for an agent alone at a time, or where all
    rewards of a time are equal. For attempts of one turn and without `fairness` this is `group_relative`.

    Source: OSPO, arXiv 2507.15351, and its code, whose earnings are of the whole fleet, idle agents included.
    """
    relative = grouped.normalize(reward, time, where, ddof=ddof, eps=eps)
    if not fairness:
        return relative
    after = before.to(torch.float64) + reward
    spread = grouped.std(after, time, where, ddof=0) - grouped.std(before, time, where, ddof=0)
    flat = grouped.degenerate(reward, time, where) | (grouped.count(time, where) <= ddof)
    return relative - torch.where(flat, 0.0, fairness * spread)


@part("turn_relative", stage="credit")
@dataclass(frozen=True)
class TurnRelative(CreditPart):
    """OSPO: `turn_relative`, the same for every token of a step. A group is a fleet of like agents in one environment,
    each trajectory an agent.

    time      which steps are at the same time: "turn", or a level that steps note, such as "step_info.time"
    discount  of later rewards; 0: a step is judged by its own reward

    Rewards are the steps' own; where a trajectory has none, its outcome on its last turn (`Forest.returns`), so that
    attempts of one turn are compared as usual, while of longer ones without step rewards those that end at a time are
    compared with 0.
    """

    time: str = "turn"
    fairness: float = 1.0
    discount: Annotated[float, Interval(ge=0, le=1)] = 0.0
    ddof: int = 0
    eps: float = 1e-8

    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        if self.time != "turn" and not self.time.startswith("step_info."):
            raise ConfigError(f"credit.time is {self.time!r}; it is 'turn' or 'step_info.KEY'")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        reward = forest.returns(self.discount)
        own = reward if self.discount == 0 else forest.returns(0.0)
        advantage = turn_relative(
            reward,
            sum_before(forest.step_previous, own),
            forest.ids("group", self.time, axis="S"),
            self.fairness,
            self.ddof,
            self.eps,
            where=forest.compared[forest.step_trajectory],
        )
        return forest.to_path(advantage, "S")
