"""Shrinkage baseline (V0.5): between the group mean and a value prediction, by the noise of the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import grouped
from gxpo.credit.base import CreditPart
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def prior_weight(mean: Tensor, prior: Tensor, noise: Tensor) -> Tensor:
    """Weight of the prior in the baseline w prior + (1 - w) mean: w = min(1, noise / (mean - prior)^2), float64.

    mean, prior  [n] in units of reward;   noise  [n] variance of the mean

    The squared distance less the noise estimates the prediction's squared error e; w = noise / (noise + e) has the
    least expected square error, and e is held at 0 from below. A gap within one standard error trusts the prediction
    wholly, a large one hardly at all. Source: V0.5, arXiv 2603.10848.

    >>> prior_weight(torch.tensor([0.25, 0.25]), torch.tensor([0.4, 0.9]), torch.tensor([0.0625, 0.0625]))
    tensor([1.0000, 0.1479], dtype=torch.float64)
    """
    gap = (mean.to(torch.float64) - prior.to(torch.float64)).square()
    far = gap > noise
    return torch.where(far, noise.to(torch.float64) / torch.where(far, gap, 1.0), 1.0)


@torch.no_grad()
def shrunk(
    outcome: Tensor, group: Tensor, prior: Tensor, variance: str = "prior", where: Tensor | None = None
) -> Tensor:
    """A = outcome - (w prior + (1 - w) mean of the group), w of `prior_weight`; [R] float64, nothing is scaled.

    outcome   [R], from 0 to 1 under variances "bound" and "prior"
    group     [R] int64 dense ids, -1 = in no group
    prior     [R] the prediction for each trajectory's task, made without its outcome; nan: there is none, and the
              baseline is the group's mean
    variance  of one outcome, whose n-th part is the noise of a mean of n: "bound", 1 / 4, the most that outcomes from 0
              to 1 can have (V0.5's 1 for outcomes of -1 and 1); "prior", p (1 - p) at p = prior, which is never more;
              both leave groups of equal outcomes informative; "sample", the group's own (1 degree of freedom taken
              off), which is 0 there, so that their baseline is their mean
    where     [R] bool, compared (default: all): whose outcomes enter the mean

    Without compared members the baseline is the prediction. The mean holds the trajectory's own outcome, as GRPO's.
    """
    n = grouped.count(group, where)
    mean, std = grouped.mean_and_std(outcome, group, where)
    known = prior.isfinite() & (group >= 0)
    given = torch.where(known, prior.to(torch.float64), mean)
    if variance == "bound":
        spread = torch.full_like(given, 0.25)
    else:
        spread = (given * (1 - given)).clamp_min(0) if variance == "prior" else std.square()
    weight = prior_weight(mean, given, spread / n.clamp_min(1))
    centred = grouped.normalize(outcome, group, where, scale="none")
    return torch.where(n > 0, centred + weight * (mean - given), torch.where(known, outcome - given, 0.0))


@part("shrinkage_baseline", stage="credit")
@dataclass(frozen=True)
class ShrinkageBaseline(CreditPart):
    """Shrinkage-baseline advantage (V0.5) with the signal "baseline" [R] as the prior, the same for every token."""

    variance: Literal["bound", "prior", "sample"] = "prior"

    needs = ("baseline",)
    learns_from_equal_groups = True

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        return forest.to_path(
            shrunk(forest.outcome, group, signals["baseline"], self.variance, where=forest.compared), "R"
        )
