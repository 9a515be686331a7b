"""Baseline from greedy or reference-model rollouts (ReMax, PVPO)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

BASELINE = "baseline"  # the origin of such rollouts, and where the info of others notes what an earlier step measured


@torch.no_grad()
def measured_baseline(outcome: Tensor, group: Tensor, measures: Tensor, paired: bool = False) -> Tensor:
    """Mean outcome of the group's baseline rollouts, or of each rollout's partner among them; [R] float64.

    outcome   [R], nan unscored: such a rollout measures nothing
    group     [R] int64 dense ids
    measures  [R] bool: it is there to be compared with. It and every trajectory for which nothing was measured have
              their own outcome as baseline (0 where unscored): nothing is learned from them
    paired    the i-th member of a group has the i-th measuring rollout's outcome

    >>> outcome, group = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4, dtype=torch.int64)
    >>> measures = torch.tensor([False, False, True, True])
    >>> measured_baseline(outcome, group, measures).tolist()
    [0.5, 0.5, 0.0, 1.0]
    >>> measured_baseline(outcome, group, measures, paired=True).tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    known = outcome.isfinite()
    held = torch.where(known, outcome.to(torch.float64), 0.0)
    ids = group
    if paired and group.numel():
        rows = torch.arange(group.numel())
        place = torch.where(measures, grouped.rank(rows, group, measures), grouped.rank(rows, group, ~measures)).long()
        ids = torch.where(group >= 0, group * (int(place.max()) + 1) + place, -1)
    used = measures & known
    return torch.where(~measures & (grouped.count(ids, used) > 0), grouped.mean(held, ids, used), held)


@part("rollout_baseline", stage="signal", gives={"baseline": "R"})
def rollout_baseline(forest: Forest, *, paired: bool = False) -> Tensor:
    """The signal "baseline" [R]: `measured_baseline` of the group's rollouts of origin "baseline".

    A trajectory whose info holds a number "baseline" has that: it was measured in an earlier step.

    paired  see `measured_baseline`
    """
    measures = torch.tensor([origin == BASELINE for origin in forest.origin], dtype=torch.bool)
    found = measured_baseline(forest.outcome, forest.ids("group", axis="R"), measures, paired)
    noted = torch.tensor([info.get(BASELINE, math.nan) for info in forest.info], dtype=torch.float64)
    return torch.where(noted.isfinite(), noted, found)
