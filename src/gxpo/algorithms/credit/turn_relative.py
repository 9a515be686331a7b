"""Step advantages among agents that act simultaneously, with a fairness term (OSPO)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.forest import grouped
from gxpo.forest.columns import sum_before
from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@column("S")
def reward(forest: Forest, *, discount: Annotated[float, Interval(ge=0, le=1)] = 0.0) -> Tensor:
    """Discounted sum of the rewards from the step on."""
    return forest.returns(discount)


@column("S")
def before(forest: Forest, paid: Tensor) -> Tensor:
    """Sum of the trajectory's rewards before the step."""
    return sum_before(forest.step_previous, paid)


@column("S")
def times(forest: Forest, *, time: str = "turn") -> Tensor:
    """Ids of (group, time)."""
    return forest.ids("group", time, axis="S")


def _check_time(time: str, **_: Any) -> str | None:
    is_time_level = time == "turn" or time.startswith("step_info.")
    return None if is_time_level else f"time is {time!r}; it is 'turn' or 'step_info.KEY'"


@part("turn_relative", stage="credit", axis="S", learns_from_equal_groups=True)
@checked_by(_check_time)
def turn_relative(
    reward: Tensor,
    before: Tensor,
    times: Tensor,
    where: Tensor | None = None,
    *,
    fairness: float = 1.0,
    ddof: int = 0,
    eps: float = 1e-8,
) -> Tensor:
    """Step advantage among simultaneous agents, with a fairness term (OSPO).

    A = (reward - mean) / (std + eps) - fairness * (std(before + reward) - std(before)), over the steps of one time

    A group is a fleet of like agents in one environment, each trajectory an agent.

    reward    [S] of each step by itself (`discount` 0), or what follows it too, discounted
    before    [S] the sum of its trajectory's rewards until then
    times     [S] int64 dense ids of (group, `time`), -1 = in no group: "turn", or a level that steps note, such as
              "step_info.time"
    where     [S] bool, compared (default: all); the others are measured against the compared
    fairness  of the second part, the same for all at a time: what has made earnings more unequal costs
    ddof      of the first std; the others are the population's

    Returns [S] float64; sum 0 at each time without `fairness`. Exactly 0 for an agent alone at a time, or where all
    rewards of a time are equal. Rewards are the steps' own; where a trajectory has none, its outcome on its last turn
    (`Forest.returns`), so that attempts of one turn are compared as usual (`group_relative`, but for `fairness`), while
    of longer ones without step rewards those that end at a time are compared with 0.

    Source: OSPO, arXiv 2507.15351, and its code, whose earnings are of the whole fleet, idle agents included.
    """
    relative = grouped.normalize(reward, times, where, ddof=ddof, eps=eps)
    # Without fairness the earnings so far are not read.
    if not fairness:
        return relative
    earnings_after = before.to(torch.float64) + reward
    spread = grouped.std(earnings_after, times, where, ddof=0) - grouped.std(before, times, where, ddof=0)
    # Equal rewards move no earnings apart: exactly 0, not the rounding of two stds.
    is_equal_S = grouped.degenerate(reward, times, where) | (grouped.count(times, where) <= ddof)
    return relative - torch.where(is_equal_S, 0.0, fairness * spread)
