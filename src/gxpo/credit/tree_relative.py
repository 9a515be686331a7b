"""Credit of a trajectory of a tree: its outcome against all trees of the prompt, and against its own tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import group_relative
from gxpo.errors import GxpoError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

Compare = Literal["both", "nested", "tree"]


@torch.no_grad()
def tree_relative(
    outcome: Tensor,
    group: Tensor,
    tree: Tensor,
    compare: str = "both",
    ddof: int = 1,
    eps: float = 1e-6,
    where: Tensor | None = None,
) -> Tensor:
    """z over the group and z over the tree of each trajectory, z(x) = (x - mean) / (std + eps).

    outcome  [R] any float dtype; the arithmetic is in float64
    group    [R] int64 dense ids, -1 = in no group
    tree     [R] int64 dense ids of (group, tree), -1 = in no tree
    compare  "both"    z_group(R) + z_tree(R)
             "nested"  z_tree(z_group(R))
             "tree"    z_tree(R)
    where    [R] bool, compared: who enters the statistics (default: all); the others are measured against those

    Returns [R] float64, every trajectory counting once in its group and in its tree. A group or tree of one, or of
    equal outcomes, adds exactly 0; the reference adds the raw outcome of a tree of one, which would pay every member
    of a group of such trees. So trees of one chain give GRPO, and one tree a prompt gives twice GRPO.

    Source: Tree-GRPO, arXiv 2509.21240; reference code, whose "both" is the paper's.
    """
    one_of("credit.compare", compare, ("both", "nested", "tree"))
    over = group_relative(outcome, group, ddof=ddof, eps=eps, where=where)
    if compare == "nested":
        return group_relative(over, tree, ddof=ddof, eps=eps, where=where)
    within = group_relative(outcome, tree, ddof=ddof, eps=eps, where=where)
    return within if compare == "tree" else over + within


@dataclass(frozen=True)
class TreeRelative(CreditPart):
    """`tree_relative` of the outcome, the same for every token of a trajectory's path, inherited ones included.

    The trees of a group are told apart by `info["tree"]` of the trajectories. A token that several trajectories share
    has the credit of each of them, as in the reference, and no 1 / sqrt(leaves).
    """

    compare: Compare = "both"
    ddof: int = 1
    eps: float = 1e-6

    requires = ("forks",)

    def __post_init__(self) -> None:
        one_of("credit.compare", self.compare, ("both", "nested", "tree"))

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        tree = forest.ids("group", "info.tree", axis="R")
        if forest.n_trajectories and bool((tree < 0).all()):
            raise GxpoError("credit=tree_relative needs info['tree'] of the trajectories: use rollout=tree")
        advantage = tree_relative(
            forest.outcome,
            forest.ids("group", axis="R"),
            tree,
            self.compare,
            self.ddof,
            self.eps,
            where=forest.compared,
        )
        return forest.to_path(advantage, "R")
