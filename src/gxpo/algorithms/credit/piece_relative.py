"""Group-relative advantages of pieces of a rollout, each against the same piece of the others: items of a list (Rank-
GRPO), denoising steps (Flow-GRPO, TempFlow-GRPO), steps of agents that act simultaneously (OSPO)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.forest import grouped
from gxpo.forest.columns import sum_before
from gxpo.forest.grouped import dense
from gxpo.forest.reshape import pieces_of
from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


def rank_returns(hit: Tensor, decay: str = "none") -> Tensor:
    """Return of each rank of a list, [R, K]: its own hit, or with `decay` "log" all discounted hits from it on.

    hit  [R, K];   the discount of rank k, from 0, is 1 / log2(k + 2)

    >>> rank_returns(torch.tensor([[1.0, 0, 1, 0]]), "log").tolist()
    [[1.5, 0.5, 0.5, 0.0]]
    """
    if decay == "none":
        return hit
    gain = hit / torch.log2(torch.arange(hit.shape[1], dtype=hit.dtype) + 2)
    return gain.flip(1).cumsum(1).flip(1)


@part("rank_relative", stage="credit", axis="P", learns_from_equal_groups=True)
def rank_relative(
    item_hit: Tensor,
    forest: Forest,
    *,
    items: Annotated[int, Ge(1)] = 20,
    decay: Literal["none", "log"] = "none",
    ddof: Annotated[int, Ge(0)] = 1,
    eps: Annotated[float, Ge(0)] = 1e-4,
) -> Tensor:
    """Rank advantage (Rank-GRPO): each item's `rank_returns` against those of the same rank in the group's lists.

    A = (r_k - mean) / (std + eps), the same for all tokens of an item; [P] float64

    item_hit  [P] of the token's item, nan unknown (counted 0); items are segments, ranked in their order
    items     ranks that count: later ones have advantage 0. A list that ends earlier has 0 at the ranks that it lacks
    decay     "none": an item is paid for its own hit; "log": for all hits from it on, discounted by their rank

    Source: Rank-GRPO, arXiv 2510.20150, and its code (`exp_inf`, `log_decay`).
    """
    rank_P, n = pieces_of(forest).number, forest.n_trajectories
    has_rank_P = rank_P < items
    place_P = forest.path_trajectory * items + rank_P.clamp_max(items - 1)
    # one number for each (list, rank): ranks that a list lacks stay 0, and count in the statistics
    hit = torch.zeros(n * items, dtype=torch.float64)
    hit[place_P[has_rank_P]] = item_hit[has_rank_P].to(torch.float64).nan_to_num(0.0)
    value = rank_returns(hit.view(n, items), decay).flatten()
    # lists are compared within (group, rank)
    group_R = forest.ids("group", axis="R")[:, None]
    ids = torch.where(group_R < 0, -1, group_R * items + torch.arange(items)).flatten()
    advantage = grouped.normalize(value, ids, forest.compared.repeat_interleave(items), ddof=ddof, eps=eps)
    return torch.where(has_rank_P, advantage[place_P], 0.0)


@column("P")
def batch(forest: Forest, trainable: Tensor) -> Tensor:
    """Segment ids of the trained tokens, -1 elsewhere."""
    return torch.where(trainable, forest.segment[forest.path_token], -1)


@column("P")
def peers(forest: Forest, batch: Tensor) -> Tensor:
    """Ids of (group, segment)."""
    return torch.where(batch >= 0, forest.ids("segment", axis="P"), -1)


@column("P")
def unit(forest: Forest, batch: Tensor) -> Tensor:
    """Ids of (trajectory, segment)."""
    return torch.where(batch >= 0, forest.ids("trajectory", "segment", axis="P"), -1)


@part("segment_relative", stage="credit", axis="P")
def segment_relative(
    outcome: Tensor,
    unit: Tensor,
    peers: Tensor,
    batch: Tensor,
    where: Tensor | None = None,
    *,
    scale: Literal["std", "batch_std", "none"] = "std",
    ddof: int = 0,
    eps: float = 1e-4,
    bound: Annotated[float, Gt(0)] = 5.0,
) -> Tensor:
    """Per-segment group-relative advantage (Flow-GRPO): compared in the segments where a trajectory has trained tokens.

    A = clamp((outcome - mean) / (std + eps), -bound, bound), the mean over the compared of one group and segment

    outcome  [P] of the trajectory; any float dtype, the arithmetic is in float64
    unit     [P] int64 ids of (trajectory, segment): the entries of a unit count once, whatever their number
    peers    [P] int64 dense ids of (group, segment) to compare within; -1 = not compared: untrained, or in no segment
    batch    [P] int64 dense ids of the segment across groups; -1 = none
    where    [P] bool, compared (default: all)
    scale    "std" of the peers; "batch_std", of the segment's outcomes in all groups, before centring; "none".
             `ddof` degrees of freedom are taken off

    Returns [P] float64, exactly 0 where there is nothing to compare: a unit alone, or equal outcomes (with "batch_std"
    too). For samplers whose segments are denoising steps: independent samples are trained in all of them, and each step
    is given the trajectory's advantage; a branch that leaves a common path at one step is trained and compared there.

    With one segment this is `group_relative`, but for the bound. Source: Flow-GRPO, arXiv 2505.05470, and TempFlow-
    GRPO, arXiv 2508.04324, with their reference code (numpy std: ddof 0, eps 1e-4, bound 5).
    """
    unit_index = dense(unit)
    # A denoising step counts once, whatever its number of tokens: its first entry stands for it.
    first_entry = torch.full((int(unit_index.max()) + 1 if len(unit_index) else 0,), len(unit_index))
    first_entry = first_entry.scatter_reduce_(0, unit_index, torch.arange(len(unit_index)), "amin")
    x, ids = outcome.to(torch.float64)[first_entry], peers[first_entry]
    is_compared = None if where is None else where[first_entry]
    # The std is of the step in all groups, before any centre is taken off.
    if scale == "batch_std":
        centred = grouped.normalize(x, ids, is_compared, scale="none")
        spread = grouped.std(x, batch[first_entry], is_compared, ddof)
        advantage = torch.where(spread > 0, centred / (spread + eps), torch.zeros_like(centred))
    else:
        advantage = grouped.normalize(x, ids, is_compared, scale=scale, ddof=ddof, eps=eps)
    return advantage.clamp(-bound, bound)[unit_index]


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
