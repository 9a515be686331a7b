"""An outcome to which the rollout adds what it has noted of an attempt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart


def with_notes(
    outcome: Tensor, info: Sequence[Mapping[str, Any]], weights: Mapping[str, float], own: float = 1.0
) -> Tensor:
    """[R] float64 own * outcome + sum_k weights[k] * info[k]; a note that a row lacks is 0 there.

    >>> with_notes(torch.tensor([1.0, 0.0]), [{"format": 1.0, "done": 0.5}, {}], {"format": 0.1, "done": 1.0}).tolist()
    [1.6, 0.0]
    """
    noted = [sum(w * float(row.get(name, 0.0)) for name, w in weights.items()) for row in info]
    return own * outcome.to(torch.float64) + torch.tensor(noted, dtype=torch.float64)


@dataclass(frozen=True)
class Noted(RewardPart):
    """`reward.shape`: `with_notes` of the outcome and of numbers in the rollouts' info.

    weights  of the notes, by name
    outcome  weight of the outcome itself
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {"format": 0.1, "execution": 1.0})
    outcome: float = 1.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(w) for w in (*self.weights.values(), self.outcome)):
            raise ConfigError(f"noted: weights are finite numbers, not {dict(self.weights)} and {self.outcome}")

    def __call__(self, forest: Forest) -> Tensor:
        return with_notes(forest.outcome, forest.info, self.weights, self.outcome)
