"""Branch-point values (ROSE): mean outcome of the rollouts through each branch of a tree, with a length penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gxpo.algorithms.credit.recursion import next_in
from gxpo.base.errors import one_of
from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of, dense

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


class Stretches(NamedTuple):
    """Stretches of trajectories between branch points, a row each by trajectory, then time; [n] each.

    trajectory  index into R; each that has tokens has a first stretch, from its beginning
    point       id of the point where the stretch begins, never shared between groups
    begin       number of action tokens before it
    through     [m] index into R: this trajectory
    passed      [m] goes through the point of this id
    """

    trajectory: Tensor
    point: Tensor
    begin: Tensor
    through: Tensor
    passed: Tensor


@torch.no_grad()
def values_at(outcome: Tensor, stretches: Stretches, where: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Values V(point) at the begin and the end of each stretch, a trajectory's last ending in its outcome; [n] float64.

    outcome  [R] any float dtype; the arithmetic is in float64
    where    [R] bool, compared (default: all): V is the mean outcome of those that go through the point; nan without
             any

    Source: ROSE, arXiv 2601.05053, and its code, which takes points by position: see `stretches_of`.
    """
    owner, outcome = stretches.trajectory, outcome.to(torch.float64)
    is_compared_m = torch.ones_like(stretches.through, dtype=torch.bool) if where is None else where[stretches.through]
    n_points = 1 + max((int(ids.max()) for ids in (stretches.point, stretches.passed) if len(ids)), default=-1)
    # Each (trajectory, point) it goes through is one row, so a mean needs two sums by point.
    counted_points = stretches.passed[is_compared_m]
    outcome_sum = torch.zeros(n_points, dtype=torch.float64).index_add_(
        0, counted_points, outcome[stretches.through[is_compared_m]]
    )
    value_at_begin = (outcome_sum / torch.bincount(counted_points, minlength=n_points))[stretches.point]
    following = next_in(owner)
    return value_at_begin, torch.where(following >= 0, value_at_begin[following.clamp_min(0)], outcome[owner])


@torch.no_grad()
def shorter_is_better(
    right: Tensor, length: Tensor, group: Tensor, stretches: Stretches, power: float, where: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Length penalty against the shortest correct rollout of the group: (factor [R], first penalised token [R]).

    right   [R] bool
    length  [R] action tokens
    group   [R] int64 dense ids
    where   [R] bool, compared (default: all): one of them is the shortest

    Of trajectory b, whose last point in common with the shortest right one s is after c tokens,
    factor = max(0, 1 - ((L_s - c) / (L_b - c))^power), and from = c: a token after the first c has its advantage less
    factor |advantage|. 0 for all that are not right, for s itself, without s, and where nothing of b is left after c.
    """
    n = len(right)
    rows = torch.arange(n)
    # The yardstick is the group's shortest right rollout, the first of several.
    is_candidate = right if where is None else right & where
    shortest_length = grouped.min(length.to(torch.float64), group, is_candidate)
    candidate = torch.where(is_candidate & (length == shortest_length), rows, n)  # n: none
    shortest = torch.full((n + 1,), n).scatter_reduce_(0, group, candidate, "amin")[group]
    # A point is in common where the group's shortest goes through it.
    points_of_shortest = stretches.passed[stretches.through == shortest[stretches.through]]
    common_begin = torch.where(torch.isin(stretches.point, points_of_shortest), stretches.begin, 0)
    # The last point in common is the longest begin that both went through.
    shared_length = torch.zeros(n, dtype=torch.int64).scatter_reduce_(0, stretches.trajectory, common_begin, "amax")
    # Only what follows the common part is compared: the shortest can't be blamed for a shared beginning.
    remaining = length - shared_length
    remaining_of_shortest = torch.cat([length, length.new_zeros(1)])[shortest] - shared_length
    ratio = remaining_of_shortest.clamp_min(0).to(torch.float64) / remaining.clamp_min(1)
    factor = torch.where(right & (shortest < n) & (shortest != rows) & (remaining > 0), 1 - ratio**power, 0.0)
    return factor.clamp_min(0.0), shared_length


def stretches_of(forest: Forest, branch_key: str = "node") -> tuple[Stretches, Tensor]:
    """Stretches of the forest, and the row of each action token.

    A trajectory has a point where its path goes on in another node and some, but not all, of the compared trajectories
    of its group that came this far go on with it. `branch_key` decides which trajectories share a point:
    "node"      those that reach it by the same tokens
    "position"  those of the group with a point after as many tokens, wherever they came from (as the code of ROSE)
    """
    one_of("credit.branch_key", branch_key, ("node", "position"))
    owner_P, group_P = forest.path_trajectory, forest.ids("group", axis="P")
    node = forest.to_path(torch.arange(forest.n_nodes), "N")
    # Nodes are shared between groups (one prompt, two groups); points never are.
    node_key_P = dense(node * forest.n_trajectories + group_P)
    enters_node_P = torch.ones(len(owner_P), dtype=torch.bool)
    enters_node_P[1:] = (owner_P[1:] != owner_P[:-1]) | (node_key_P[1:] != node_key_P[:-1])
    # A trajectory counts once in a node, however many tokens it has there.
    n_through_P = grouped.count(node_key_P, enters_node_P & forest.to_path(forest.compared, "R"))
    # A point is where some, but not all, compared trajectories go on: where the number of those through the node
    # changes along the path.
    begins_stretch_P = enters_node_P.clone()
    begins_stretch_P[1:] &= (owner_P[1:] != owner_P[:-1]) | (n_through_P[1:] != n_through_P[:-1])
    first_entry = begins_stretch_P.nonzero().squeeze(1)
    offset = first_entry - begins_of(owner_P, forest.n_trajectories)[owner_P[first_entry]]
    all_R = torch.arange(forest.n_trajectories)
    # ROSE's code: all points of a group after as many tokens are one, wherever they came from.
    if branch_key == "position":
        point_key, through, passed_key, passed_group = offset, owner_P[first_entry], offset, group_P[first_entry]
    else:  # a point is the end of a node, and 0 that of the prompt
        end_key_P = node_key_P + 1
        point_key = torch.where(offset > 0, end_key_P[(first_entry - 1).clamp_min(0)], 0)
        through = torch.cat([owner_P[enters_node_P], all_R])
        passed_key = torch.cat([end_key_P[enters_node_P], torch.zeros_like(all_R)])
        passed_group = torch.cat([group_P[enters_node_P], forest.ids("group", axis="R")])
    width = int(passed_key.max()) + 1 if len(passed_key) else 1
    ids = dense(torch.cat([group_P[first_entry] * width + point_key, passed_group * width + passed_key]))
    return Stretches(
        owner_P[first_entry], ids[: len(first_entry)], offset, through, ids[len(first_entry) :]
    ), begins_stretch_P.cumsum(0) - 1


def branch_values(forest: Forest, branch_key: str = "node") -> tuple[Tensor, Tensor, Tensor]:
    """Stretch of each action token, and `values_at` both of its ends.

    Where no two trajectories share a beginning, outcome - V is the outcome less the group's mean (Dr. GRPO).
    """
    stretches, row = stretches_of(forest, branch_key)
    return row, *values_at(forest.outcome, stretches, forest.compared)


@torch.no_grad()
def less_where_longer(credit: Tensor, forest: Forest, branch_key: str, power: float) -> Tensor:
    """Subtract the length penalty from an advantage [P]. Right is an outcome above 0; the reference takes all but 0, so
    that a negative outcome counts as right."""
    owner_P, group = forest.path_trajectory, forest.ids("group", axis="R")
    length = torch.bincount(owner_P, minlength=forest.n_trajectories)
    is_right_R = (forest.outcome > 0) & (length > 0)
    stretches = stretches_of(forest, branch_key)[0]
    factor, shared_length = shorter_is_better(is_right_R, length, group, stretches, power, forest.compared)
    # Tokens of the common part keep their advantage: the shortest rollout has them as well.
    position_P = torch.arange(len(owner_P)) - begins_of(owner_P, forest.n_trajectories)[owner_P]
    return torch.where(position_P >= shared_length[owner_P], credit - factor[owner_P] * credit.abs(), credit)
