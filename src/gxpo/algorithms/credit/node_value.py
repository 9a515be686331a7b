"""Advantages of tree nodes by their leaves' mean rewards, against root and parent (TreeRL, SPO-tree)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.value_delta import value_delta
from gxpo.base.errors import one_of
from gxpo.forest import grouped
from gxpo.forest.columns import last_before, sum_before
from gxpo.forest.grouped import dense, place_in
from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

Form = Literal["paper", "released", "edge"]
Value = Literal["leaf_mean", "child_mean"]
EdgeScale = Literal["none", "sibling_std"]
FLAT = 1e-8  # a change of W below it is none, in the released code


class Visits(NamedTuple):
    """Nodes on each trajectory's path, a row for every (trajectory, node); [V] each.

    trajectory  index into R
    place       dense ids of (group, node): rows of one node and group are the leaves below it
    above       the row of the same trajectory's node before it, -1 for the first
    """

    trajectory: Tensor
    place: Tensor
    above: Tensor


@column("")
def tree(forest: Forest) -> tuple[Visits, Tensor]:
    """Visits of the forest, and the row of each action token."""
    return visits_of(forest)


def _fits(form: str, value: str, scale: str, eps: float) -> str | None:
    if scale != "none" and form != "edge":
        return f"scale={scale} divides a difference to the parent: set credit.form=edge"
    if value == "child_mean" and form == "released":
        return "form=released counts leaves: set credit.value=leaf_mean, or another form"
    return None


@part("node_value", stage="credit", axis="R", gives="P", requires=("forks",))
@checked_by(_fits)
def node_value(
    outcome: Tensor,
    group: Tensor,
    tree: tuple[Visits, Tensor],
    where: Tensor | None = None,
    *,
    form: Form = "paper",
    value: Value = "leaf_mean",
    scale: EdgeScale = "none",
    eps: float = 1e-8,
) -> Tensor:
    """Node-value advantage (TreeRL, SPO-tree): V(s), the mean outcome of the leaves below a token's node, against the
    root's and the parent's; the same in all trajectories through the node.

    The tree is that of `Forest.parent`: what tokens are conditioned on. An observation between two actions has a value
    of its own, so that the environment's part has no advantage.

    GA(s) = V(s) - V(root),  LA(s) = V(s) - V(parent of s);  V(root) is the mean outcome of the group
    "paper"     (GA + LA) / sqrt(leaves below s)
    "edge"      LA, over std + eps of the values of the parent's children (ddof 0) where `scale` is "sibling_std"
    "released"  2 W(s) - W(parent of s), W(s) = n / (n - 1) GA(s) / sqrt(leaves below s) and W(root) = 0, n the group's
                leaves: the root of the leaves divides before the difference is taken. Where |W(s) - W(parent)| < 1e-8
                the node has its parent's difference

    outcome  [R] any float dtype; the arithmetic is in float64
    group    [R] int64 dense ids, -1 = in no group
    tree     `visits_of` the forest: see `Visits`, and [P] the row of them that each action token belongs to
    where    [R] bool, compared (default: all): the leaves that make values
    value    "leaf_mean" | "child_mean": V(s) is the mean of the values of its children, however many leaves each has; a
             trajectory that ends at s is one of them. V(root) likewise. Not with "released", which counts leaves

    Returns [P] float64. Over a path the LA of its nodes add up to outcome - V(root), whatever the value. Nodes that the
    same leaves go through are one node: where a branch was dropped, a cut in an action is none. Exactly 0: tokens of
    nodes without a compared leaf, and everything in a group of equal outcomes or of one leaf (a difference of values of
    at most 1e-12 of the larger is rounding, and none).

    Source: TreeRL, arXiv 2506.11902; "released" is what its script runs: leaves scored leave-one-out (hence
    n / (n - 1)), `use_weighted_value`, `weighted_value_style sqrt`, `use_state_value_reward`, nothing centred. "edge"
    with "child_mean" is SPO-tree, arXiv 2505.23564, and its code: scale "none" is called "rloo" there, although a node
    is one of the children whose mean it is measured against; "sibling_std" is its "grpo".
    """
    one_of("credit.form", form, ("paper", "released", "edge"))
    visits, row = tree
    members = (group >= 0) if where is None else (group >= 0) & where
    leaf = visits.trajectory
    odds = None if value == "leaf_mean" else _chance(group, visits, members)
    held = grouped.mean(outcome[leaf], visits.place, members[leaf], None if odds is None else odds[leaf])
    leaves = grouped.count(visits.place, members[leaf])
    root = grouped.mean(outcome, group, members, odds)[leaf]
    up = visits.above
    head = last_before(up, (up >= 0) & (leaves[up.clamp_min(0)] == leaves))  # where the row's node begins
    parent = torch.where(up[head] >= 0, held[up[head].clamp_min(0)], root)
    overall, local = value_delta(root, held), value_delta(parent, held)
    if form == "edge":
        if scale == "sibling_std":
            spread = _sibling_std(outcome, group, visits, members, held, head)
            local = torch.where(spread > 0, local / (spread + eps), 0.0)
        credit = local[row]
    elif form == "paper":
        credit = ((overall + local) / leaves.clamp_min(1).sqrt())[row]
    else:
        size = grouped.count(group, members)[leaf]
        weighted = size / (size - 1).clamp_min(1) * overall / leaves.clamp_min(1).sqrt()
        step = weighted - torch.where(up[head] >= 0, weighted[up[head].clamp_min(0)], 0.0)
        flat = step.abs() < FLAT
        step = torch.where(flat, 0.0, step)[last_before(up, flat)]
        credit = (weighted + step)[row]
    return torch.where(leaves[row] > 0, credit, torch.zeros_like(credit))


def _ends(visits: Visits) -> Tensor:
    """[V] bool: no node of the same trajectory comes below."""
    ends = torch.ones(visits.above.shape, dtype=torch.bool)
    ends[visits.above[visits.above >= 0]] = False
    return ends


def _first_of_place(visits: Visits, among: Tensor) -> Tensor:
    """One of the rows `among` [V] for each place that they are of, in order of the places."""
    rows = among.nonzero().squeeze(1)
    first = torch.full((int(visits.place.max()) + 1 if len(rows) else 0,), len(among))
    first.scatter_reduce_(0, visits.place[rows], rows, "amin")
    return first[first < len(among)]


def _chance(group: Tensor, visits: Visits, members: Tensor) -> Tensor:
    """[R] with what chance a walk ends in each leaf that goes down from the group's root, by every child alike.

    The mean of the leaves below a node, weighted by it, is the mean of the node's children, each weighted alike.
    """
    own, up = members[visits.trajectory], visits.above
    first = _first_of_place(visits, own)
    top = first[up[first] < 0]
    inner = first[up[first] >= 0]
    ends = _ends(visits)
    children = torch.zeros(int(visits.place.max()) + 1 if len(up) else 0, dtype=torch.float64)
    for child in (visits.place[up[inner]], visits.place[ends & own]):
        children.index_add_(0, child, torch.ones(len(child), dtype=torch.float64))
    tops = torch.bincount(group[visits.trajectory[top]], minlength=int(group.max()) + 1 if len(group) else 0)
    split = children.clamp_min(1).log()[visits.place]
    walked = split + sum_before(up, split)
    last = torch.zeros_like(group).scatter_reduce_(
        0, visits.trajectory, torch.where(ends, torch.arange(len(ends)), -1), "amax", include_self=False
    )
    return (-walked[last]).exp() / tops.clamp_min(1)[group.clamp_min(0)]


def _sibling_std(outcome: Tensor, group: Tensor, visits: Visits, members: Tensor, held: Tensor, head: Tensor) -> Tensor:
    """[V] the population std of the values of all children of the node that the row's node is a child of."""
    up, own = visits.above[head], members[visits.trajectory]
    apart = int(visits.place.max()) + 1 if len(up) else 0
    parent = torch.where(up >= 0, visits.place[up.clamp_min(0)], apart + group[visits.trajectory])
    one = torch.zeros_like(own)
    one[_first_of_place(visits, own & (head == torch.arange(len(head))))] = True
    end = (_ends(visits) & own).nonzero().squeeze(1)  # a trajectory that ends at a node is a child of it
    values = torch.cat([held, outcome.to(torch.float64)[visits.trajectory[end]]])
    ids = torch.cat([parent, visits.place[end]])
    return grouped.std(values, ids, torch.cat([one, torch.ones(len(end), dtype=torch.bool)]), 0)[: len(held)]


def visits_of(forest: Forest) -> tuple[Visits, Tensor]:
    """Visits of the forest, and the row of each action token."""
    trajectory, node = forest.visits
    begin = trajectory * forest.n_nodes
    key = begin + node  # ascending
    group = forest.ids("group", axis="R").index_select(0, trajectory)
    place = dense(node * forest.n_trajectories + group)
    own = forest.path_trajectory * forest.n_nodes + forest.to_path(torch.arange(forest.n_nodes), "N")
    return Visits(trajectory, place, _rows_above(key, begin, forest.parent.index_select(0, node))), place_in(key, own)


def _rows_above(key: Tensor, begin: Tensor, parent: Tensor) -> Tensor:
    """[V] the row of (trajectory, parent), -1 without a parent: mostly the row before, so that it is tried first."""
    wanted, before = begin + parent, torch.arange(-1, len(key) - 1)
    above = torch.where((parent >= 0) & (wanted == key[before]), before, -1)
    missed = ((parent >= 0) & (above < 0)).nonzero().squeeze(1)
    above[missed] = place_in(key, wanted[missed])
    return above
