"""Weights that grow with the credit: what came out better than expected counts more."""

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
def exponential_credit(credit: Tensor, temperature: float = 1.0, most: float = 100.0) -> Tensor:
    """w = min(e^(A / temperature), most); [P] float64, 1 where the credit is 0.

    >>> exponential_credit(torch.tensor([0.0, 1.0, -1.0, 9.0]), 0.5).round(decimals=6).tolist()
    [1.0, 7.389056, 0.135335, 100.0]
    """
    return (credit.to(torch.float64) / temperature).exp().clamp_max(most)


@dataclass(frozen=True)
class ExponentialCredit(WeightPart):
    """`exponential_credit`, token by token; it multiplies a loss that has the credit as a factor already.

    temperature  in units of credit: the lower, the more the best count
    most         bound of the weight, finite

    Source: REC, arXiv 2509.24203 (RED-Weight). The bound is ours: a credit of many standard deviations would be all.
    """

    temperature: float = 1.0
    most: float = 100.0

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and 0 < self.most < math.inf):
            raise ConfigError(
                f"weight.exponential_credit.temperature ({self.temperature}) is above 0, .most ({self.most}) above 0 "
                "and finite"
            )

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        return exponential_credit(credit, self.temperature, self.most)
