"""Weights by place: the beginning and the end of what was written count more than its middle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.trees import begins_of
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def u_shape(place: Tensor, length: Tensor, strength: float = 0.3) -> Tensor:
    """w = 1 + strength (2 t - 1)^2, t = place / (length - 1); [n] float64. Of one token t is 0.

    place, length  [n] int64: the token's place from 0, and how many there are

    The mean weight of a long trajectory is 1 + strength / 3; it is not divided out.

    >>> u_shape(torch.arange(5), torch.full((5,), 5)).tolist()
    [1.3, 1.075, 1.0, 1.075, 1.3]
    """
    t = place.to(torch.float64) / (length - 1).clamp_min(1)
    return 1 + strength * (2 * t - 1).square()


@dataclass(frozen=True)
class UShape(WeightPart):
    """`u_shape` of the places among a trajectory's trainable tokens, all turns in a row. Source: AVATAR's temporal
    advantage shaping, arXiv 2508.03100 (0.3)."""

    strength: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.strength < math.inf:
            raise ConfigError(f"weight.u_shape.strength is {self.strength}; it is a finite factor, 0 or more")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        entries = forest.path_trainable.nonzero().squeeze(1)
        owner = forest.path_trajectory[entries]
        begins = begins_of(owner, forest.n_trajectories)
        weight = torch.ones(forest.n_entries, dtype=torch.float64)
        weight[entries] = u_shape(torch.arange(len(entries)) - begins[owner], begins.diff()[owner], self.strength)
        return weight
