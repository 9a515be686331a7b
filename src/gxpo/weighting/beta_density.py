"""Weights for groups by how common their difficulty is among the groups of the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart
from gxpo.weighting.verdicts import one_each, success_rate

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def beta_normalizer(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """(alpha, beta), each at least 1, from the moments of the groups' success rates.

    A Beta(a, b) has these moments for a = k mean, b = k (1 - mean), k = mean (1 - mean) / variance - 1;
    alpha = 1 + a / 3, beta = 1 + b / 3. Without variance (1, 1), whose density is 1 everywhere.
    """
    spread = variance > 0
    k = mean * (1 - mean) / torch.where(spread, variance, 1.0) - 1
    ends = [(1 + k * share / 3).clamp_min(1.0) for share in (mean, 1 - mean)]
    return torch.where(spread, ends[0], 1.0), torch.where(spread, ends[1], 1.0)


@torch.no_grad()
def beta_density(rate: Tensor, group: Tensor, where: Tensor | None = None, most: float = 1e6, ddof: int = 1) -> Tensor:
    """w = 1 / density of Beta(alpha, beta) at the group's rate, at most `most`: [R] float64.

    rate   [R] share of the group's compared attempts that are correct
    group  [R] int64 dense ids, -1 = in no group
    where  [R] bool, compared (default: all): groups with at least two of them make up mean and variance (`ddof`)

    1 where the rate is 0 or 1 (there is no contrast to weigh, and the density may have a zero) and where all rates are
    equal. Beta(1, 1) gives REINFORCE with a baseline; Beta(3/2, 3/2) has density (8 / pi) sqrt(p (1 - p)), so that
    w (r - p) is pi / 8 times GRPO's advantage with the population's std.

    Source: BNPO, arXiv 2506.02864, and its code.
    """
    counts = torch.ones_like(group, dtype=torch.bool) if where is None else where
    asked = one_each(group, counts) & (levels.count(group, counts) > 1)
    mean, std = levels.mean_and_std(rate, torch.zeros_like(group), asked, ddof)
    alpha, beta = beta_normalizer(mean, std.square())
    mixed = (rate > 0) & (rate < 1)
    p = torch.where(mixed, rate.to(torch.float64), 0.5)
    scale = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    weight = (scale - (alpha - 1) * p.log() - (beta - 1) * (-p).log1p()).exp().clamp_max(most)
    return torch.where(mixed, weight, 1.0)


@dataclass(frozen=True)
class BetaDensity(WeightPart):
    """`beta_density` of each trajectory's group, its rate by the verdicts of the compared trajectories.

    most  largest weight

    Made for binary rewards and credit that is centred and not scaled (`credit.scale: none`). A trajectory without a
    verdict counts as correct where its outcome is above 0.
    """

    most: float = 1e6

    def __post_init__(self) -> None:
        if not 0 < self.most < float("inf"):
            raise ConfigError(f"weight.beta_density.most is {self.most}; it is a weight above 0")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        return forest.to_path(beta_density(success_rate(forest), group, forest.compared, self.most), "R")
