"""Weights by the sign of the credit: how much rewarded and punished tokens count against each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def by_sign(credit: Tensor, positive: float = 1.0, negative: float = 1.0) -> Tensor:
    """w = `positive` where credit > 0, `negative` where credit < 0, 1 where it is 0; [P] float64.

    Source: W-REINFORCE, arXiv 2506.01347, weighs positive samples by 0.1; 0 leaves one side out.

    >>> by_sign(torch.tensor([2.0, -1.0, 0.0]), positive=0.1).tolist()
    [0.1, 1.0, 1.0]
    """
    one = torch.ones(credit.shape, dtype=torch.float64)
    return torch.where(credit > 0, positive * one, torch.where(credit < 0, negative * one, one))


@dataclass(frozen=True)
class BySign(WeightPart):
    """`by_sign` of the credit, token by token."""

    positive: float = 1.0
    negative: float = 1.0

    def __post_init__(self) -> None:
        for name in ("positive", "negative"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"weight.by_sign.{name} is {value}; it is a finite factor, 0 or more")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        return by_sign(credit, self.positive, self.negative)
