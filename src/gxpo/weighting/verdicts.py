"""Who is right, and how often: what weights by difficulty have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels

if TYPE_CHECKING:
    from gxpo.forest import Forest


@torch.no_grad()
def correct(forest: Forest) -> Tensor:
    """[R] bool: the verdict, or, where a trajectory has none, an outcome above 0."""
    return torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0)


@torch.no_grad()
def success_rate(forest: Forest) -> Tensor:
    """[R] float64: the share of the compared trajectories of each one's group that are `correct`."""
    return levels.mean(correct(forest), forest.ids("group", axis="R"), forest.compared)


@torch.no_grad()
def one_each(group: Tensor, where: Tensor) -> Tensor:
    """[R] bool: the first row of each group that counts, so that a statistic over them has groups as its unit."""
    row = torch.arange(group.numel(), dtype=torch.float64)
    return where & (group >= 0) & (levels.min(row, group, where) == row)
