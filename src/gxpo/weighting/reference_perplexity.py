"""Answers whose verdict is suspect by how likely a reference model holds them to be are not trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart
from gxpo.weighting.trajectory import trajectory_mean
from gxpo.weighting.verdicts import correct

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def plausible(perplexity: Tensor, right: Tensor, low: float = 1.05, high: float = 2.5) -> Tensor:
    """1 for a correct answer of perplexity <= high and for a wrong one of perplexity >= low, else 0; [R] float64.

    >>> plausible(torch.tensor([2.0, 3.0, 2.0, 1.01]), torch.tensor([1, 1, 0, 0]).bool()).tolist()
    [1.0, 0.0, 1.0, 0.0]
    """
    return torch.where(right, perplexity <= high, perplexity >= low).to(torch.float64)


@dataclass(frozen=True)
class ReferencePerplexity(WeightPart):
    """`plausible` by exp(-mean log-prob) of each answer's tokens under the reference model (CAPO, calibration).

    high  a correct answer that the reference finds stranger than this may have come out right by luck
    low   a wrong answer that it finds surer than this may have been judged wrongly

    What is left out keeps its place in every statistic and denominator. Source: arXiv 2604.12632.
    """

    low: float = 1.05
    high: float = 2.5

    needs = ("reference_logprob",)

    def __post_init__(self) -> None:
        if not (self.low >= 1 and self.high >= 1):
            raise ConfigError(
                f"weight.reference_perplexity.low ({self.low}) and .high ({self.high}) are perplexities, 1 or more"
            )

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        perplexity = (-trajectory_mean(forest, signals, "reference_logprob")).exp()
        return forest.to_path(plausible(perplexity, correct(forest), self.low, self.high), "R")
