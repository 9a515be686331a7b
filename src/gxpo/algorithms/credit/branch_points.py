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
    """V(point) where each stretch begins, and V(next point), or the outcome of a trajectory's last one; [n] float64.

    outcome  [R] any float dtype; the arithmetic is in float64
    where    [R] bool, compared (default: all): V is the mean outcome of those of them that go through the point; nan
             where there is none

    Source: ROSE, arXiv 2601.05053, and its code, which takes points by position: see `stretches_of`.
    """
    own, outcome = stretches.trajectory, outcome.to(torch.float64)
    enters = torch.ones_like(stretches.through, dtype=torch.bool) if where is None else where[stretches.through]
    n = 1 + max((int(ids.max()) for ids in (stretches.point, stretches.passed) if len(ids)), default=-1)
    counted = stretches.passed[enters]
    total = torch.zeros(n, dtype=torch.float64).index_add_(0, counted, outcome[stretches.through[enters]])
    before = (total / torch.bincount(counted, minlength=n))[stretches.point]
    following = next_in(own)
    return before, torch.where(following >= 0, before[following.clamp_min(0)], outcome[own])


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
    measure = right if where is None else right & where
    least = grouped.min(length.to(torch.float64), group, measure)
    best = torch.where(measure & (length == least), rows, n)
    best = torch.full((n + 1,), n).scatter_reduce_(0, group, best, "amin")[group]  # the first of the shortest, n: none
    # a point is in common where the group's shortest goes through it
    of_best = stretches.passed[stretches.through == best[stretches.through]]
    common = torch.where(torch.isin(stretches.point, of_best), stretches.begin, 0)
    shared = torch.zeros(n, dtype=torch.int64).scatter_reduce_(0, stretches.trajectory, common, "amax")
    rest, rest_of_best = length - shared, torch.cat([length, length.new_zeros(1)])[best] - shared
    ratio = rest_of_best.clamp_min(0).to(torch.float64) / rest.clamp_min(1)
    factor = torch.where(right & (best < n) & (best != rows) & (rest > 0), 1 - ratio**power, 0.0)
    return factor.clamp_min(0.0), shared


def stretches_of(forest: Forest, keyed_by: str = "node") -> tuple[Stretches, Tensor]:
    """Stretches of the forest, and the row of each action token.

    A trajectory has a point where its path goes on in another node and some, but not all, of the compared trajectories
    of its group that came this far go on with it. keyed_by says which trajectories' points are one:
    "node"      those that stand at it after the same tokens
    "position"  those of the group with a point after as many tokens, wherever they came from (as the code of ROSE)
    """
    one_of("credit.keyed_by", keyed_by, ("node", "position"))
    own, group = forest.path_trajectory, forest.ids("group", axis="P")
    node = forest.to_path(torch.arange(forest.n_nodes), "N")
    place = dense(node * forest.n_trajectories + group)
    new = torch.ones(len(own), dtype=torch.bool)
    new[1:] = (own[1:] != own[:-1]) | (place[1:] != place[:-1])
    # a trajectory stands in a node once, with however many tokens
    leaves = grouped.count(place, new & forest.to_path(forest.compared, "R"))
    begins = new.clone()
    begins[1:] &= (own[1:] != own[:-1]) | (leaves[1:] != leaves[:-1])
    rows = begins.nonzero().squeeze(1)
    offset = rows - begins_of(own, forest.n_trajectories)[own[rows]]
    all_rows = torch.arange(forest.n_trajectories)
    if keyed_by == "position":
        at, through, passed, of = offset, own[rows], offset, group[rows]
    else:  # a point is the end of a node, and 0 that of the prompt
        ends = place + 1
        at = torch.where(offset > 0, ends[(rows - 1).clamp_min(0)], 0)
        through = torch.cat([own[new], all_rows])
        passed = torch.cat([ends[new], torch.zeros_like(all_rows)])
        of = torch.cat([group[new], forest.ids("group", axis="R")])
    width = int(passed.max()) + 1 if len(passed) else 1
    ids = dense(torch.cat([group[rows] * width + at, of * width + passed]))
    return Stretches(own[rows], ids[: len(rows)], offset, through, ids[len(rows) :]), begins.cumsum(0) - 1


def branch_values(forest: Forest, keyed_by: str = "node") -> tuple[Tensor, Tensor, Tensor]:
    """Stretch of each action token, and `values_at` both of its ends.

    Where no two trajectories share a beginning, outcome - V is the outcome less the group's mean (Dr. GRPO).
    """
    stretches, row = stretches_of(forest, keyed_by)
    return row, *values_at(forest.outcome, stretches, forest.compared)


@torch.no_grad()
def less_where_longer(credit: Tensor, forest: Forest, keyed_by: str, power: float) -> Tensor:
    """Advantage [P] minus the length penalty. Correct are outcomes above 0; the reference takes all but 0, so that a
    negative outcome counts as right."""
    own, group = forest.path_trajectory, forest.ids("group", axis="R")
    length = torch.bincount(own, minlength=forest.n_trajectories)
    right = (forest.outcome > 0) & (length > 0)
    stretches = stretches_of(forest, keyed_by)[0]
    factor, shared = shorter_is_better(right, length, group, stretches, power, forest.compared)
    place = torch.arange(len(own)) - begins_of(own, forest.n_trajectories)[own]
    return torch.where(place >= shared[own], credit - factor[own] * credit.abs(), credit)
