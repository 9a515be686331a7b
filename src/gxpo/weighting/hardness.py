"""Groups weighed by how far their attempts are from a demonstration, in reward and in what they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def reward_gap(outcome: Tensor, group: Tensor, attempt: Tensor, shown: Tensor, best: float = 1.0) -> Tensor:
    """[R] float64: what a demonstration earns more than the mean of the group's attempts; nan without attempts.

    attempt, shown  [R] bool: which trajectories are the group's attempts, which its demonstrations
    best            what a demonstration earns where the group has none
    """
    there = levels.count(group, attempt) > 0
    goal = torch.where(levels.count(group, shown) > 0, levels.mean(outcome, group, shown), best)
    return torch.where(there, goal - levels.mean(outcome, group, attempt), torch.nan)


@torch.no_grad()
def over_mean(x: Tensor) -> Tensor:
    """[n] float64: s(x_i) / s(mean x), s the logistic function; 1 where x is nan, which enters no mean.

    >>> over_mean(torch.tensor([0.0, 0.0, torch.nan])).tolist()
    [1.0, 1.0, 1.0]
    """
    known = x.isfinite()
    middle = x[known].to(torch.float64).mean() if bool(known.any()) else torch.zeros((), dtype=torch.float64)
    return torch.where(known, torch.sigmoid(x.to(torch.float64)) / torch.sigmoid(middle), 1.0)


@torch.no_grad()
def responsiveness(gap: Tensor, outlier: float = 2.0) -> float:
    """s(mean of the gaps that are no outliers) / s(mean of all), s the logistic function; 1 without a gap.

    gap      [n], nan: there is none
    outlier  how many standard deviations (population) from the mean a gap may be

    >>> round(responsiveness(torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])), 6)
    0.923241
    """
    x = gap[gap.isfinite()].to(torch.float64)
    if not len(x):
        return 1.0
    near = (x - x.mean()).abs() <= outlier * x.std(correction=0) * (1 + levels.DEGENERATE)
    kept = x[near].mean() if bool(near.any()) else x.mean()
    return float(torch.sigmoid(kept) / torch.sigmoid(x.mean()))


@torch.no_grad()
def dissimilarity(embedding: Tensor, group: Tensor, attempt: Tensor, model: Tensor) -> Tensor:
    """[R] float64 in [0, 2]: 1 - the mean cosine between the group's attempts and its models; nan without either.

    embedding  [R, H];   attempt, model  [R] bool; a trajectory may be both
    """
    unit = torch.nn.functional.normalize(embedding.to(torch.float64), dim=1)
    rows = (model & (group >= 0)).nonzero().squeeze(1)
    n = int(group.max()) + 1 if len(rows) else 1
    total = torch.zeros(n, unit.shape[1], dtype=torch.float64).index_add_(0, group[rows], unit[rows])
    models = levels.count(group, model)
    cosine = (unit * total[group.clamp(0, n - 1)]).sum(1) / models.clamp_min(1)
    both = (models > 0) & (levels.count(group, attempt) > 0)
    return torch.where(both, 1.0 - levels.mean(cosine, group, attempt), torch.nan)


@dataclass(frozen=True)
class Hardness(WeightPart):
    """w = `over_mean`(`dissimilarity`)^unlike `responsiveness`(`reward_gap`)^gap, the same for all of a group (DR-IRL).

    unlike, gap  how much each counts, 0 or more; 1 and 1 in the paper
    best         what a demonstration earns where the group has none: the largest outcome there is
    outlier      standard deviations from the mean gap beyond which a group's does not count

    Means are over the step's groups, each counting once. The second factor is one number for all of them: it is above 1
    where the odd gaps were small ones.

    Demonstrations are the group's trajectories of origin "demonstration", where the rollout brings some; where it
    brings none, attempts are held against the group's right ones (success 1). Attempts are its other compared
    trajectories.
    Reads signal "embedding" [R, H].
    """

    unlike: float = 1.0
    gap: float = 1.0
    best: float = 1.0
    outlier: float = 2.0

    needs = ("embedding",)

    def __post_init__(self) -> None:
        if not (self.unlike >= 0 and self.gap >= 0 and self.outlier > 0):
            raise ConfigError(
                f"weight.hardness: unlike ({self.unlike:g}) and gap ({self.gap:g}) are 0 or more, so that hard groups "
                f"weigh more, and outlier ({self.outlier:g}) is above 0"
            )

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        shown = torch.tensor([origin == "demonstration" for origin in forest.origin], dtype=torch.bool)
        attempt = forest.compared & ~shown
        model = torch.where(levels.count(group, shown) > 0, shown, attempt & (forest.success >= 1))
        unlike = dissimilarity(signals["embedding"], group, attempt, model)
        gap = reward_gap(forest.outcome, group, attempt, shown, self.best)
        first = torch.zeros(int(group.max()) + 1 if len(group) else 0, dtype=torch.int64)
        first[group.flip(0)] = torch.arange(len(group)).flip(0)  # a row of each group
        weight = over_mean(unlike[first]) ** self.unlike * responsiveness(gap[first], self.outlier) ** self.gap
        return forest.to_path(weight[group], "R")
