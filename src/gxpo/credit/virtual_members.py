"""Pseudo-rollouts of maximum reward in every group's statistics (NGRPO)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.credit.relative import Statistic, group_relative
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def virtual_members(
    outcome: Tensor,
    group: Tensor,
    value: float = 1.0,
    count: int = 1,
    center: str = "mean",
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    where: Tensor | None = None,
) -> Tensor:
    """`group_relative` over the compared members of each group and `count` more of outcome `value`; [R] float64.

    outcome  [R] any float dtype;   group  [R] int64 dense ids, -1 = in no group
    value    in units of the outcome; the best there can be, so that the others fall behind it
    where    [R] bool, compared (default: all)

    A group of equal outcomes other than `value` has credit: with count 1, and eps 0, -1 / sqrt(G + 1) for each of G
    below it, whatever they and `value` are. That holds for a group of one, too. Equal to `value`: exactly 0. Over a
    group the advantage adds up to -count (value - mean) / (std + eps): below 0, unless all are equal to `value`.

    Source: NGRPO, arXiv 2509.18851; reference code, which gives a group of one its raw reward.
    """
    n = int(group.max()) + 1 if group.numel() else 0
    ids = torch.cat([group, torch.arange(n).repeat(count)])
    everyone = torch.cat([outcome.to(torch.float64), torch.full((n * count,), value, dtype=torch.float64)])
    enters = None if where is None else torch.cat([where, torch.ones(n * count, dtype=torch.bool)])
    return group_relative(everyone, ids, center, scale, ddof, eps, where=enters)[: len(outcome)]


@part("pseudo_rollouts", stage="credit")
@dataclass(frozen=True)
class PseudoRollouts(Statistic):
    """Group-relative advantage with pseudo-rollouts (NGRPO): groups in which all rollouts fail learn, too."""

    value: Annotated[float, Interval(gt=-math.inf, lt=math.inf)] = 1.0
    count: Annotated[int, Ge(1)] = 1

    learns_from_equal_groups = True

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group, constants = forest.ids("group", axis="R"), (self.center, self.scale, self.ddof, self.eps)
        advantage = virtual_members(forest.outcome, group, self.value, self.count, *constants, where=forest.compared)
        return forest.to_path(advantage, "R")
