"""A constant advantage for rollouts of one origin (AEPO)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.credit.base import CreditPart
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@part("constant_advantage", stage="credit")
@dataclass(frozen=True)
class ConstantAdvantage(CreditPart):
    """Constant advantage: `value` for the trajectories of one origin, 0 for others; to be added to another advantage.

    Where such a trajectory is compared with no other (a group of its own), a group-relative advantage is 0, and the
    sum is `value`. Source: AEPO, arXiv 2510.08141, whose tempered samples have advantage 1.
    """

    origin: str = "tempered"
    value: Annotated[float, Interval(gt=-math.inf, lt=math.inf)] = 1.0

    learns_from_equal_groups = True

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        own = torch.tensor([self.value if o == self.origin else 0.0 for o in forest.origin], dtype=torch.float64)
        return forest.to_path(own, "R")
