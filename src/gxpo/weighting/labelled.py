"""Weights that move labelled tokens up: more credit where they are rewarded, less where they are punished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError, GxpoError
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def labelled(credit: Tensor, marked: Tensor, alpha: float = 0.2) -> Tensor:
    """w = 1 + alpha sign(credit) where `marked`, else 1; [n] float64. w times credit is credit + alpha |credit| there.

    >>> labelled(torch.tensor([0.5, -0.5, 0.5]), torch.tensor([True, True, False])).tolist()
    [1.2, 0.8, 1.0]
    """
    return 1 + alpha * torch.where(marked, credit.to(torch.float64).sign(), 0.0)


@dataclass(frozen=True)
class Labelled(WeightPart):
    """`labelled` of the tokens that a segmenter has given a label (`extras["label"]` above 0).

    Credits of a group no longer add up to 0: marked tokens are pushed on the whole. Source: HICRA, arXiv 2509.03646.
    """

    alpha: float = 0.2

    requires = ("segments",)

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"weight.labelled.alpha is {self.alpha}; it is between 0 and 1")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        if "label" not in forest.extras:
            raise GxpoError(
                "weight labelled reads extras['label'], and these rollouts have none: set segment=spans and "
                "segment.patterns to what is to be labelled"
            )
        return labelled(credit, forest.extras["label"][forest.path_token] > 0, self.alpha)
