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
    """[R] float64 in [0, 1]: what a demonstration earns more than the group's attempts, over the batch's largest gap.

    attempt, shown  [R] bool: which trajectories are the group's attempts, which its demonstrations
    best            what a demonstration earns where the group has none

    0 for a group without attempts, for one that does better than its demonstrations, and where no group has a gap.
    """
    there = levels.count(group, attempt) > 0
    goal = torch.where(levels.count(group, shown) > 0, levels.mean(outcome, group, shown), best)
    gap = torch.where(there, goal - levels.mean(outcome, group, attempt), 0.0).clamp_min(0.0)
    largest = levels.max(gap, torch.zeros_like(group))
    return gap / torch.where(largest > 0, largest, 1.0)


@torch.no_grad()
def dissimilarity(embedding: Tensor, group: Tensor, attempt: Tensor, model: Tensor) -> Tensor:
    """[R] float64 in [0, 2]: 1 - the mean cosine between the group's attempts and its models; 0 without either.

    embedding  [R, H];   attempt, model  [R] bool; a trajectory may be both
    """
    unit = torch.nn.functional.normalize(embedding.to(torch.float64), dim=1)
    rows = (model & (group >= 0)).nonzero().squeeze(1)
    n = int(group.max()) + 1 if len(rows) else 1
    total = torch.zeros(n, unit.shape[1], dtype=torch.float64).index_add_(0, group[rows], unit[rows])
    models = levels.count(group, model)
    cosine = (unit * total[group.clamp(0, n - 1)]).sum(1) / models.clamp_min(1)
    both = (models > 0) & (levels.count(group, attempt) > 0)
    return torch.where(both, 1.0 - levels.mean(cosine, group, attempt), 0.0)


@dataclass(frozen=True)
class Hardness(WeightPart):
    """w = (1 + unlike * `dissimilarity`) (1 + gap * `reward_gap`), the same for all of a group (DR-IRL's GRPO-S).

    unlike, gap  how much each counts, 0 or more
    best         what a demonstration earns where the group has none: the largest outcome there is

    Demonstrations are the group's trajectories of origin "demonstration", where the rollout brings some; where it
    brings none, attempts are held against the group's right ones (success 1). Attempts are its other compared
    trajectories.
    Reads signal "embedding" [R, H].
    """

    unlike: float = 1.0
    gap: float = 1.0
    best: float = 1.0

    needs = ("embedding",)

    def __post_init__(self) -> None:
        if not (self.unlike >= 0 and self.gap >= 0):
            raise ConfigError(
                f"weight.hardness: unlike ({self.unlike:g}) and gap ({self.gap:g}) are 0 or more, so that hard groups "
                "weigh more"
            )

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        shown = torch.tensor([origin == "demonstration" for origin in forest.origin], dtype=torch.bool)
        attempt = forest.compared & ~shown
        model = torch.where(levels.count(group, shown) > 0, shown, attempt & (forest.success >= 1))
        unlike = dissimilarity(signals["embedding"], group, attempt, model)
        gap = reward_gap(forest.outcome, group, attempt, shown, self.best)
        return forest.to_path((1.0 + self.unlike * unlike) * (1.0 + self.gap * gap), "R")
