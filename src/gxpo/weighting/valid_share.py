"""A weight that makes up for the groups of a step in which nothing can be learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def valid_share(moved: Tensor, group: Tensor, where: Tensor | None = None) -> float:
    """The share of trajectories whose group has credit for anybody, in [0, 1]; 0 where nobody counts.

    moved  [R] bool: it has credit other than 0
    group  [R] int64 dense ids, -1 = in no group, which counts as a group without credit
    where  [R] bool (default: all): who counts

    The unit is the trajectory: of a group with credit, those whose own credit happens to be 0 are valid, too.

    >>> valid_share(torch.tensor([True, True, False, False, False]), torch.tensor([0, 0, 0, 1, 1]))
    0.6
    """
    counts = torch.ones_like(moved) if where is None else where
    valid = counts & (levels.max(moved, group, counts) > 0)
    return int(valid.sum()) / max(1, int(counts.sum()))


@dataclass(frozen=True)
class ValidShare(WeightPart):
    """1 / `valid_share`, the same for every token: the mean over the step becomes one over the groups with credit.

    Only compared trajectories with trainable tokens count. 1 where no group has credit. With groups of equal size,
    `sequence_mean` and a centred credit, the loss is that of the step without the groups of equal rewards.

    Source: GPG, arXiv 2504.02546 (alpha = B / (B - M)), and its code, which adds 1e-5 to the share.
    """

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        moved = torch.zeros(forest.n_trajectories, dtype=torch.bool)
        moved[forest.path_trajectory[forest.path_trainable & (credit != 0)]] = True
        acts = torch.zeros_like(moved)
        acts[forest.path_trajectory[forest.path_trainable]] = True
        share = valid_share(moved, forest.ids("group", axis="R"), forest.compared & acts)
        return torch.full((forest.n_entries,), 1 / share if share else 1.0, dtype=torch.float64)
