"""Weights that keep the rollouts from which most is to be learned, by the size of their credit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, one_of
from gxpo.trees import begins_of
from gxpo.weighting.base import WeightPart
from gxpo.weighting.trajectory import counting, trajectory_mean

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def largest(score: Tensor, unit: Tensor, quota: Tensor, where: Tensor) -> Tensor:
    """[n] bool: of each unit the `quota` members of largest score, of equal ones (to 1e-12) the earlier.

    score  [n];   unit  [n] int64, -1 = in none, and not kept
    quota  [n] int64, the same for all of a unit
    where  [n] bool, who competes; the others are kept where they come up to the least that is kept of their unit

    >>> one = torch.zeros(4, dtype=torch.int64)
    >>> largest(torch.tensor([1.0, 3.0, 3.0, 2.0]), one, one + 2, one == 0).tolist()
    [False, True, True, False]
    """
    score = levels.settled(score, unit)
    rows = (where & (unit >= 0)).nonzero().squeeze(1)
    order = rows[torch.argsort(score[rows], descending=True, stable=True)]
    order = order[torch.argsort(unit[order], stable=True)]
    own = unit[order]
    begins = begins_of(own, int(own.max()) + 1 if len(own) else 0)
    kept = torch.zeros(score.shape, dtype=torch.bool)
    kept[order] = torch.arange(len(order)) - begins[own] < quota[order]
    least = levels.min(score, unit, kept)
    return kept | (~where & (levels.count(unit, kept) > 0) & (score >= least))


@torch.no_grad()
def largest_credit(credit: Tensor, group: Tensor, where: Tensor, prune: float = 0.5, scope: str = "group") -> Tensor:
    """w = n / k for the k = max(1, int(n (1 - prune))) of n rollouts whose |credit| is largest, 0 for the others.

    credit  [R];   group  [R] int64;   where  [R] bool, who competes and is counted
    scope   "group": k of each group; "batch": of all rollouts, so that a group may lose all of its own

    [R] float64. Weights change no denominator, which n / k makes up for: with one scope and a mean over trajectories
    the loss is that of the kept ones alone. Who does not compete is kept where it comes up to the least that is kept.

    Source: CPPO, arXiv 2503.22342: "group" is the paper's, "batch" its code for verl.

    >>> a = torch.tensor([1.0, -1.0, 0.2, -0.2, 0.577, 0.577, 0.577, -1.732])
    >>> g = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    >>> largest_credit(a, g, g >= 0, scope="batch").nonzero().squeeze(1).tolist()
    [0, 1, 4, 7]
    """
    unit = group if scope == "group" else torch.zeros_like(group)
    n = levels.count(unit, where)
    quota = ((n * (1 - prune) + 1e-9).floor()).clamp_min(1)
    kept = largest(credit.abs().to(torch.float64), unit, quota.long(), where)
    share = n / torch.minimum(quota, n).clamp_min(1)
    return torch.where(levels.count(unit, where) > 0, torch.where(kept, share, 0.0), 1.0)


@dataclass(frozen=True)
class LargestCredit(WeightPart):
    """`largest_credit` by each trajectory's mean credit over its trainable tokens.

    prune  share that is not trained
    scope  "group" | "batch"

    The credit is worked out before, over whole groups; rollouts that are not trained cost no forward pass with
    gradient.
    """

    prune: float = 0.5
    scope: Literal["group", "batch"] = "group"

    def __post_init__(self) -> None:
        if not 0 <= self.prune < 1:
            raise ConfigError(f"weight.largest_credit.prune is {self.prune}; it is a share from 0 to below 1")
        one_of("weight.largest_credit.scope", self.scope, ("group", "batch"))

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        own = trajectory_mean(forest, {"credit": credit}, "credit")
        group = forest.ids("group", axis="R")
        return forest.to_path(largest_credit(own, group, counting(forest), self.prune, self.scope), "R")
