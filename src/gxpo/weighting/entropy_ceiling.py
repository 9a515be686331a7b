"""Weights that leave out answers that the policy was very unsure of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart
from gxpo.weighting.trajectory import trajectory_mean

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@dataclass(frozen=True)
class EntropyCeiling(WeightPart):
    """1 for trajectories whose mean entropy over their trainable tokens is at most `most` nats, 0 for the others.

    Reads signal `entropy`, of the policy at the start of the step. What is left out stays in the denominators.
    Source: GTPO, arXiv 2508.03772: about ln 2, a choice between two equally likely words; its code has 0.7.
    """

    most: float = field(default=0.7, metadata={"unbounded": True})

    needs = ("entropy",)

    def __post_init__(self) -> None:
        if not 0 < self.most <= math.inf:
            raise ConfigError(f"weight.entropy_ceiling.most is {self.most}; it is an entropy in nats above 0")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        return forest.to_path((trajectory_mean(forest, signals, "entropy") <= self.most).to(torch.float64), "R")
