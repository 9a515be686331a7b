"""Tree advantages (TreePO): a leaf's outcome minus the mean outcome below each of its ancestors."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.node_value import Visits, visits_of
from gxpo.base.errors import one_of
from gxpo.forest import grouped
from gxpo.forest.columns import last_before
from gxpo.forest.forest import ACTION, Forest
from gxpo.parts.registry import part


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
    """A = sum_d w_d (outcome - mean_d) / sum_d w_d over the groups d that a leaf is in: all leaves of the prompt, and
    those below each action on its way that has more than one.

    outcome     [R] any float dtype; the arithmetic is in float64
    group       [R] int64 dense ids, -1 = in no group
    visits      see `Visits`;   action [V] bool: the node is of an action (equal contexts alone make no group)
    weight      w_d: "size", the number of leaves of d | "equal", 1
    drop_equal  groups of equal outcomes (max - min at most 1e-12 relative) count neither above nor below the line
    where       [R] bool, compared (default: all): the leaves that means are of and that are counted

    Returns [R] float64. Actions in a row that the same leaves go through are one. Exactly 0: a leaf alone with its
    prompt, and a leaf all of whose groups are equal. Without forks this is `group_relative` without scale.

    Source: TreePO, arXiv 2508.17445, and its code, whose depths are segments of a fixed length: a stretch of several
    segments without a branch counts as often there, and once here.
    """
    one_of("credit.weight", weight, ("size", "equal"))
    members = group >= 0 if where is None else (group >= 0) & where
    leaf = visits.trajectory
    own = members[leaf]
    leaves, up = grouped.count(visits.place, own), visits.above
    all_leaves = grouped.count(group, members)
    acted = torch.where(up >= 0, last_before(up, ~action)[up.clamp_min(0)], -1)  # the action before, or where it began
    above = torch.where((acted >= 0) & action[acted.clamp_min(0)], leaves[acted.clamp_min(0)], all_leaves[leaf])
    others = leaves > own.to(leaves)
    counts = action & others & (leaves < above)  # peers to compare with, and no ancestor's group over again
    below = grouped.mean(outcome[leaf], visits.place, own)
    size = torch.where(counts, leaves if weight == "size" else torch.ones_like(leaves), 0.0)
    top = torch.where(all_leaves > 0, all_leaves if weight == "size" else torch.ones_like(all_leaves), 0.0)
    if drop_equal:
        size = torch.where(grouped.degenerate(outcome[leaf], visits.place, own), 0.0, size)
        top = torch.where(grouped.degenerate(outcome, group, members), 0.0, top)
    over = grouped.normalize(outcome, group, members, scale="none")
    gap = outcome.to(torch.float64)[leaf] - below
    gap = torch.where(grouped.degenerate(outcome[leaf], visits.place, own) & own, 0.0, gap)
    total = (top * over).index_add(0, leaf, size * gap)
    share = top.index_add(0, leaf, size)
    return torch.where(share > 0, total / torch.where(share > 0, share, 1.0), 0.0)


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
    found = ancestor_groups(outcome, group, visits, action, weight, drop_equal, forest.compared)
    credit = forest.to_path(found, "R")
    if whiten == "none":
        return credit
    return batch_whiten(credit, forest.path_trainable, forest.to_path(forest.compared, "R"))
