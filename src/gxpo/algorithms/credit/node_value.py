"""Tree advantages by the mean outcome of the leaves below a node: TreeRL, SPO-tree, TreePO."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.value_delta import value_delta
from gxpo.base.errors import one_of
from gxpo.forest import grouped
from gxpo.forest.columns import last_before, sum_before
from gxpo.forest.forest import ACTION, Forest
from gxpo.forest.grouped import dense, place_in
from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part

Form = Literal["paper", "released", "edge"]
Value = Literal["leaf_mean", "child_mean"]
EdgeScale = Literal["none", "sibling_std"]
FLAT = 1e-8  # the released code treats a smaller change of W as none


class Visits(NamedTuple):
    """Nodes on each trajectory's path, a row for every (trajectory, node); [V] each.

    trajectory  index into R
    place       dense ids of (group, node): the rows of one place are the leaves below the node
    above       the row of the same trajectory's node before it, -1 for the first
    """

    trajectory: Tensor
    place: Tensor
    above: Tensor


@column("")
def tree(forest: Forest) -> tuple[Visits, Tensor]:
    """Visits of the forest, and the visit of each action token; see `visits_of`."""
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
    where    [R] bool, compared (default: all): leaves that make values
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
    is_member_R = (group >= 0) if where is None else (group >= 0) & where
    leaf = visits.trajectory
    # "child_mean" is the mean of leaves weighted by a walk that takes every child equally often.
    walk_probability_R = None if value == "leaf_mean" else _walk_probability(group, visits, is_member_R)
    weight_V = None if walk_probability_R is None else walk_probability_R[leaf]
    value_V = grouped.mean(outcome[leaf], visits.place, is_member_R[leaf], weight_V)
    n_leaves_V = grouped.count(visits.place, is_member_R[leaf])
    root_value_V = grouped.mean(outcome, group, is_member_R, walk_probability_R)[leaf]
    above_V = visits.above
    # Nodes in a row with the same leaves are one node: its parent is above the first of them.
    head_V = last_before(above_V, (above_V >= 0) & (n_leaves_V[above_V.clamp_min(0)] == n_leaves_V))
    parent_value_V = torch.where(above_V[head_V] >= 0, value_V[above_V[head_V].clamp_min(0)], root_value_V)
    # `value_delta` makes differences within rounding exactly 0.
    global_advantage_V, local_advantage_V = value_delta(root_value_V, value_V), value_delta(parent_value_V, value_V)
    if form == "edge":
        if scale == "sibling_std":
            std_V = _sibling_std(outcome, group, visits, is_member_R, value_V, head_V)
            local_advantage_V = torch.where(std_V > 0, local_advantage_V / (std_V + eps), 0.0)
        advantage_P = local_advantage_V[row]
    elif form == "paper":
        advantage_P = ((global_advantage_V + local_advantage_V) / n_leaves_V.clamp_min(1).sqrt())[row]
    else:
        # The released script scores leaves leave-one-out, hence n / (n - 1), and divides W before it takes differences.
        group_size_V = grouped.count(group, is_member_R)[leaf]
        weighted_V = (
            group_size_V / (group_size_V - 1).clamp_min(1) * global_advantage_V / n_leaves_V.clamp_min(1).sqrt()
        )
        change_V = weighted_V - torch.where(above_V[head_V] >= 0, weighted_V[above_V[head_V].clamp_min(0)], 0.0)
        # Its code carries a parent's difference on where W does not change.
        is_flat_V = change_V.abs() < FLAT
        change_V = torch.where(is_flat_V, 0.0, change_V)[last_before(above_V, is_flat_V)]
        advantage_P = (weighted_V + change_V)[row]
    return torch.where(n_leaves_V[row] > 0, advantage_P, torch.zeros_like(advantage_P))


def _ends(visits: Visits) -> Tensor:
    """Return [V] bool: the last node of its trajectory."""
    is_end_V = torch.ones(visits.above.shape, dtype=torch.bool)
    is_end_V[visits.above[visits.above >= 0]] = False
    return is_end_V


def _first_of_place(visits: Visits, among: Tensor) -> Tensor:
    """First of the rows `among` [V] for each of their places, in order of the places."""
    rows = among.nonzero().squeeze(1)
    first = torch.full((int(visits.place.max()) + 1 if len(rows) else 0,), len(among))
    first.scatter_reduce_(0, visits.place[rows], rows, "amin")
    return first[first < len(among)]


def _walk_probability(group: Tensor, visits: Visits, members: Tensor) -> Tensor:
    """Probability [R] of each leaf under a random walk from the group's root that takes every child equally often.

    The mean of the leaves below a node, weighted by it, is the mean of the node's children, each weighted alike.
    """
    is_member_V, above_V = members[visits.trajectory], visits.above
    first_visit = _first_of_place(visits, is_member_V)
    top_visit = first_visit[above_V[first_visit] < 0]
    # Children of a node: the nodes below it, and each trajectory that ends at it.
    inner_visit = first_visit[above_V[first_visit] >= 0]
    is_end_V = _ends(visits)
    n_children = torch.zeros(int(visits.place.max()) + 1 if len(above_V) else 0, dtype=torch.float64)
    for child in (visits.place[above_V[inner_visit]], visits.place[is_end_V & is_member_V]):
        n_children.index_add_(0, child, torch.ones(len(child), dtype=torch.float64))
    n_tops_G = torch.bincount(group[visits.trajectory[top_visit]], minlength=int(group.max()) + 1 if len(group) else 0)
    # Products along the path as sums of logarithms, so that one cumulative sum serves all leaves.
    log_children_V = n_children.clamp_min(1).log()[visits.place]
    log_branching_V = log_children_V + sum_before(above_V, log_children_V)
    # The walk to a leaf is that to its trajectory's last visit.
    last_visit_R = torch.zeros_like(group).scatter_reduce_(
        0, visits.trajectory, torch.where(is_end_V, torch.arange(len(is_end_V)), -1), "amax", include_self=False
    )
    return (-log_branching_V[last_visit_R]).exp() / n_tops_G.clamp_min(1)[group.clamp_min(0)]


def _sibling_std(
    outcome: Tensor, group: Tensor, visits: Visits, members: Tensor, value_V: Tensor, head_V: Tensor
) -> Tensor:
    """Population std [V] of the values of a node and its siblings."""
    above_V, is_member_V = visits.above[head_V], members[visits.trajectory]
    # Top nodes are siblings under their group's root, which is no node: ids behind all places.
    n_places = int(visits.place.max()) + 1 if len(above_V) else 0
    parent = torch.where(above_V >= 0, visits.place[above_V.clamp_min(0)], n_places + group[visits.trajectory])
    is_child = torch.zeros_like(is_member_V)
    # One row stands for each child, at the head of the nodes that the same leaves go through.
    is_child[_first_of_place(visits, is_member_V & (head_V == torch.arange(len(head_V))))] = True
    end_visit = (_ends(visits) & is_member_V).nonzero().squeeze(1)  # a trajectory that ends at a node is a child of it
    values = torch.cat([value_V, outcome.to(torch.float64)[visits.trajectory[end_visit]]])
    ids = torch.cat([parent, visits.place[end_visit]])
    return grouped.std(values, ids, torch.cat([is_child, torch.ones(len(end_visit), dtype=torch.bool)]), 0)[
        : len(value_V)
    ]


def visits_of(forest: Forest) -> tuple[Visits, Tensor]:
    """Visits of a forest, and the row among them of each action token, [P]."""
    trajectory, node = forest.visits
    begin = trajectory * forest.n_nodes
    key = begin + node  # ascending
    group = forest.ids("group", axis="R").index_select(0, trajectory)
    place_V = dense(node * forest.n_trajectories + group)
    # Keys (trajectory, node) are ascending in the visits, so that a token's visit is found by search.
    entry_key_P = forest.path_trajectory * forest.n_nodes + forest.to_path(torch.arange(forest.n_nodes), "N")
    return Visits(trajectory, place_V, _rows_above(key, begin, forest.parent.index_select(0, node))), place_in(
        key, entry_key_P
    )


def _rows_above(key: Tensor, begin: Tensor, parent: Tensor) -> Tensor:
    """Row [V] of each visit's parent in its trajectory, -1 without one."""
    parent_key, row_before = begin + parent, torch.arange(-1, len(key) - 1)
    # The parent is mostly the row before; only the rest is searched.
    above_V = torch.where((parent >= 0) & (parent_key == key[row_before]), row_before, -1)
    unresolved = ((parent >= 0) & (above_V < 0)).nonzero().squeeze(1)
    above_V[unresolved] = place_in(key, parent_key[unresolved])
    return above_V


@torch.no_grad()
def ancestor_groups(
    outcome: Tensor,
    group: Tensor,
    visits: Visits,
    action: Tensor,
    weight: str = "size",
    drop_equal: bool = False,
    where: Tensor | None = None,
) -> Tensor:
    """Ancestor-group advantage of each leaf (TreePO): A = sum_d w_d (outcome - mean_d) / sum_d w_d.

    d are the groups that a leaf is in: all leaves of the prompt, and those below each action on its way with several.

    outcome     [R] any float dtype; the arithmetic is in float64
    group       [R] int64 dense ids, -1 = in no group
    visits      see `Visits`;   action [V] bool: the node is of an action (equal contexts alone make no group)
    weight      w_d: "size", the number of leaves of d | "equal", 1
    drop_equal  groups of equal outcomes (max - min at most 1e-12 relative) count neither above nor below the line
    where       [R] bool, compared (default: all): leaves that enter means and counts

    Returns [R] float64. Actions in a row that the same leaves go through are one. Exactly 0: a leaf alone with its
    prompt, and a leaf all of whose groups are equal. Without forks this is `group_relative` without scale.

    Source: TreePO, arXiv 2508.17445, and its code, whose depths are segments of a fixed length: a stretch of several
    segments without a branch counts as often there, and once here.
    """
    one_of("credit.weight", weight, ("size", "equal"))
    is_member_R = group >= 0 if where is None else (group >= 0) & where
    leaf = visits.trajectory
    is_member_V = is_member_R[leaf]
    n_leaves_V, above_V = grouped.count(visits.place, is_member_V), visits.above
    n_leaves_R = grouped.count(group, is_member_R)
    # A group is compared with that of the nearest action above: contexts between two actions are passed over.
    action_above_V = torch.where(
        above_V >= 0, last_before(above_V, ~action)[above_V.clamp_min(0)], -1
    )  # the action before, or where it began
    n_leaves_above_V = torch.where(
        (action_above_V >= 0) & action[action_above_V.clamp_min(0)],
        n_leaves_V[action_above_V.clamp_min(0)],
        n_leaves_R[leaf],
    )
    has_others_V = n_leaves_V > is_member_V.to(n_leaves_V)
    # A node with the leaves of its ancestor would be the same group once more; TreePO's depths count it again.
    is_group_V = (
        action & has_others_V & (n_leaves_V < n_leaves_above_V)
    )  # peers to compare with, and no ancestor's group over again
    mean_below_V = grouped.mean(outcome[leaf], visits.place, is_member_V)
    weight_V = torch.where(is_group_V, n_leaves_V if weight == "size" else torch.ones_like(n_leaves_V), 0.0)
    root_weight_R = torch.where(n_leaves_R > 0, n_leaves_R if weight == "size" else torch.ones_like(n_leaves_R), 0.0)
    # Groups without differences leave the average too, in numerator and denominator.
    if drop_equal:
        weight_V = torch.where(grouped.degenerate(outcome[leaf], visits.place, is_member_V), 0.0, weight_V)
        root_weight_R = torch.where(grouped.degenerate(outcome, group, is_member_R), 0.0, root_weight_R)
    root_gap_R = grouped.normalize(outcome, group, is_member_R, scale="none")
    gap_V = outcome.to(torch.float64)[leaf] - mean_below_V
    gap_V = torch.where(grouped.degenerate(outcome[leaf], visits.place, is_member_V) & is_member_V, 0.0, gap_V)
    # The group of all leaves is not a node: its term begins the sum, nodes on the leaf's path add theirs.
    weighted_sum_R = (root_weight_R * root_gap_R).index_add(0, leaf, weight_V * gap_V)
    weight_sum_R = root_weight_R.index_add(0, leaf, weight_V)
    return torch.where(weight_sum_R > 0, weighted_sum_R / torch.where(weight_sum_R > 0, weight_sum_R, 1.0), 0.0)


@part("ancestor_groups", stage="credit", gives="P", requires=("forks",))
def by_ancestors(
    outcome: Tensor,
    group: Tensor,
    forest: Forest,
    *,
    weight: Literal["size", "equal"] = "size",
    drop_equal: bool = False,
    whiten: Literal["token", "none"] = "token",
) -> Tensor:
    """Tree advantage (TreePO): a leaf's outcome minus the mean outcome below each of its ancestors; [P] float64.

    weight, drop_equal  of `ancestor_groups`
    whiten  "token": (A - mean) / sqrt(var + 1e-8) over the trainable tokens of the batch, unbiased variance, which is
            all the scaling that TreePO does | "none"
    """
    visits, _ = visits_of(forest)
    action = forest.kind[forest.visits[1]] == ACTION
    advantage_R = ancestor_groups(outcome, group, visits, action, weight, drop_equal, forest.compared)
    advantage_P = forest.to_path(advantage_R, "R")
    if whiten == "none":
        return advantage_P
    # TreePO divides by nothing inside groups: whitening over tokens is its only scaling.
    return batch_whiten(advantage_P, forest.path_trainable, forest.to_path(forest.compared, "R"))
