"""An outcome with tiers of progress, each a larger step than the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from gxpo.errors import ConfigError, one_of
from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart
from gxpo.rewards.component import read_component
from gxpo.rewards.length import verdicts


def tiered(score: Tensor, thresholds: Sequence[float], values: Sequence[float]) -> Tensor:
    """values[k] for the last threshold k that `score` reaches, 0 below the first; float64, nan stays.

    >>> tiered(torch.tensor([0.2, 0.25, 0.6, 1.0]), [0.25, 0.5, 0.75], [0.1, 0.25, 0.5]).tolist()
    [0.0, 0.1, 0.25, 0.5]
    """
    given = score.to(torch.float64)
    reached = torch.searchsorted(torch.tensor(thresholds, dtype=torch.float64), given.nan_to_num(0.0), right=True)
    return torch.where(given.isnan(), given, torch.tensor([0.0, *values], dtype=torch.float64)[reached])


@dataclass(frozen=True)
class Tiered(RewardPart):
    """`reward.shape`: C + alpha S; C 1 for what the verifier accepts, else 0, S `tiered` of component `component`,
    progress from 0 to 1.

    thresholds  where tiers begin, rising, above 0
    values      what they are worth: steps that never shrink, from 0 through `values` to 1
    alpha       above 0, up to 1: the best failure is worth less than the least success
    solved      what tells successes apart: their "tiers" too, or nothing ("flat": each is 1)

    More progress never earns less, and no progress earns what success does. Progress that is unknown leaves a failure
    unscored; a success is worth 1 then. Reads `success`, not what the outcome was.

    Source: SSL (arXiv 2601.22491), whose tiers are reconstructed.
    """

    component: str = "progress"
    thresholds: Sequence[float] = field(default_factory=lambda: [0.25, 0.5, 0.75])
    values: Sequence[float] = field(default_factory=lambda: [0.1, 0.25, 0.5])
    alpha: float = 1.0
    solved: Literal["tiers", "flat"] = "tiers"

    def __post_init__(self) -> None:
        one_of("tiered: solved", self.solved, ("tiers", "flat"))
        if not 0 < self.alpha <= 1:
            raise ConfigError(f"tiered: alpha is above 0 and up to 1, not {self.alpha!r}")
        if len(self.thresholds) != len(self.values):
            raise ConfigError(f"tiered: {len(self.thresholds)} thresholds need as many values, not {len(self.values)}")
        if not all(a < b for a, b in pairwise([0.0, *self.thresholds, 1.0 + 1e-9])):
            raise ConfigError(f"tiered: thresholds {list(self.thresholds)} must rise, above 0 and up to 1")
        steps = [b - a for a, b in pairwise([0.0, *self.values, 1.0])]
        if not (all(s > 0 for s in steps) and all(a <= b + 1e-9 for a, b in pairwise(steps))):
            raise ConfigError(
                f"tiered: values {list(self.values)} must rise from 0 to 1 by steps that do not shrink, the last to 1"
            )

    def __call__(self, forest: Forest) -> Tensor:
        right = verdicts(forest, "tiered")
        value = tiered(read_component(forest, self.component, "tiered"), self.thresholds, self.values)
        bonus = self.alpha * value.nan_to_num(0.0) if self.solved == "tiers" else torch.zeros_like(value)
        return torch.where(forest.scored, torch.where(right, 1.0 + bonus, self.alpha * value), torch.nan)
