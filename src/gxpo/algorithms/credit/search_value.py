"""Advantages of search-tree pieces by backed-up values, against the outcomes of the tree's rollouts (DeepSearch)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Gt, Interval
from torch import Tensor

from gxpo.forest import grouped
from gxpo.forest.reshape import pieces_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@torch.no_grad()
def search_value(sign: Tensor, depth: Tensor, leaf: Tensor, place: Tensor, where: Tensor, floor: float = 0.1) -> Tensor:
    """Backed-up node value of each token: sum of w over the successes below it or, without any, -sum over the failures.

        w = max((depth + 1) / (leaf + 1), floor)

    sign    [n] +1 or -1: success or failure of the entry's trajectory; 0 unknown, which adds nothing
    depth   [n] of the entry's node: 1 for the first piece, since the prompt, the root, has 0
    leaf    [n] depth of the last piece of the entry's trajectory
    place   [n] int64 dense ids: entries of one node and group, from the trajectories that go through it; -1 = none
    where   [n] bool: trajectories that make values; another one on a path of its own has its own value

    Returns [n] float64. A node that ever led to a success is not negative, whatever else came of it, and the order in
    which outcomes came does not matter. A last piece on no other path has its sign as value.

    Source: DeepSearch, arXiv 2509.25454, as its code backs up (values are sums and not divided by visits).
    """
    weight = ((depth + 1).to(torch.float64) / (leaf + 1)).clamp_min(floor)
    zero = torch.zeros_like(weight)
    # One success below a node hides all failures there: the search has shown that the node can be solved.
    success_sum = grouped.sum(torch.where(sign > 0, weight, zero), place, where)
    failure_sum = grouped.sum(torch.where(sign < 0, weight, zero), place, where)
    value = torch.where(success_sum > 0, success_sum, -failure_sum)
    return torch.where(grouped.count(place, where) > 0, value, weight * sign)


@torch.no_grad()
def against_ends(
    score: Tensor,
    end: Tensor,
    group: Tensor,
    trajectory: Tensor,
    where: Tensor,
    scale: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """Normalise token scores by the group's ends: A = (score - mean) / (std + eps), population std.

    score       [P]
    end         [R] the score that each trajectory ends with
    group       [R] int64 dense ids, -1 = in no group
    trajectory  [P] index into R
    where       [R] bool, compared: trajectories whose ends are in the statistics
    scale       False: the mean is taken off, without a division

    Returns [P] float64, exactly 0 in a group of one or of equal ends. The reference divides by eps alone there: a group
    that failed as a whole has advantages of 10^5 on every piece but the last. It gives a group of one its raw scores.
    """
    mean, spread = grouped.mean(end, group, where), grouped.std(end, group, where, ddof=0)
    # DeepSearch divides by eps alone there: a failed group's advantages would be of order 10^5.
    is_equal_R = grouped.degenerate(end, group, where) | (grouped.count(group, where) < 2) | (group < 0)
    divisor = spread + eps if scale else torch.ones_like(spread)
    centred = (score.to(torch.float64) - mean[trajectory]) / divisor[trajectory]
    return torch.where(is_equal_R[trajectory], 0.0, centred)


@part("search_value", stage="credit", axis="R", gives="P", requires=("forks",))
def searched(
    correct: Tensor,
    group: Tensor,
    forest: Forest,
    where: Tensor,
    *,
    temperature: Annotated[float, Gt(0)] = 1.0,
    bound: Annotated[float, Gt(0)] = 1.0,
    floor: Annotated[float, Interval(ge=0, le=1)] = 0.1,
    scale: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """Search-tree advantage (DeepSearch): `against_ends` of bound * tanh(`search_value` / temperature) at every piece
    but a trajectory's last, whose score is the value itself, +-1; [P] float64.

    A piece is a segment of an action, or a turn without segments: in a forest of rollout `search` a node of the search.
    Values are worked out from the forest's attempts, which are all that was backed up. Success is the verdict (where
    there is none: an outcome above 0), so shaped rewards do not enter.

    temperature, bound   T and q_max
    floor                least weight of an outcome, at the top of a long attempt
    scale                divide by the group's spread
    """
    # A piece of an action is a node of the search; depth is counted from the root, the prompt.
    pieces, owner_P, sign_R = pieces_of(forest), forest.path_trajectory, correct.to(torch.float64) * 2 - 1
    depth_P = pieces.number + 1
    last_depth_P = torch.zeros(len(sign_R), dtype=torch.int64).scatter_reduce_(0, owner_P, depth_P, "amax")[owner_P]
    # Entries of one stored token and group belong to one node, whatever trajectory they are read in.
    node_P = forest.ids("group", "token", axis="P")
    value_P = search_value(sign_R[owner_P], depth_P, last_depth_P, node_P, where[owner_P], floor)
    # The end of a path has its verdict itself, unbounded by the squashing that backed-up sums need.
    score_P = torch.where(last_depth_P == depth_P, sign_R[owner_P], bound * (value_P / temperature).tanh())
    return against_ends(score_P, sign_R, group, owner_P, where, scale, eps)
