"""Weights that take the median rollout of each group out of the loss, as if it had only been sampled to compare."""

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
def drop_median(outcome: Tensor, group: Tensor, where: Tensor | None = None) -> Tensor:
    """w = 0 for the lower median of a group's n compared members, n / (n - 1) for the others; [R] float64.

    outcome  [R] any float dtype;   group  [R] int64 dense ids, -1 = in no group
    where    [R] bool, compared (default: all)

    Of equal members the first. Weights change no denominator, which n / (n - 1) makes up for: with groups of one size
    and a mean over trajectories, the loss is that of the n - 1 kept ones alone. 1: a group of one, members that are not
    compared, and those of no group.

    Source: MC-GRPO, arXiv 2601.22582, and its code: G + 1 are sampled and G trained.

    >>> drop_median(torch.tensor([1.0, 0.5, 0.0]), torch.zeros(3, dtype=torch.int64)).tolist()
    [1.5, 0.0, 1.5]
    """
    outcome = outcome.to(torch.float64)
    enters = group >= 0 if where is None else (group >= 0) & where
    n = levels.count(group, enters)
    enters = enters & (n > 1)
    at_median = enters & (outcome == levels.median(outcome, group, enters, lower=True))
    place = torch.arange(len(outcome), dtype=torch.float64)
    dropped = at_median & (place == levels.min(place, group, at_median))
    kept = torch.where(enters, n / (n - 1).clamp_min(1), 1.0)
    return torch.where(dropped, 0.0, kept)


@dataclass(frozen=True)
class DropMedian(WeightPart):
    """`drop_median` of the outcome, the same for every token of a trajectory.

    The policy term is freed of the median rollout; terms that weights do not concern (KL, entropy) see it.
    """

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        weight = drop_median(forest.outcome, forest.ids("group", axis="R"), where=forest.compared)
        return forest.to_path(weight, "R")
