"""Credit for doing better than somebody else did at the same task, held between two bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.credit.base import CreditPart
from gxpo.errors import ConfigError

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def clipped_gap(outcome: Tensor, baseline: Tensor, low: float = -0.2, high: float = 0.28) -> Tensor:
    """clip(outcome - baseline, low, high) of each trajectory; [R], [R] -> [R] float64, in units of reward.

    Source: AAPO (arXiv 2505.14264) and its code, where it is added to the group-relative advantage.

    >>> clipped_gap(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0])).tolist()
    [0.28, -0.2, 0.0]
    """
    return (outcome.to(torch.float64) - baseline).clamp(low, high)


@dataclass(frozen=True)
class ClippedGap(CreditPart):
    """`clipped_gap` to the signal "baseline" [R], the same for every token; made to be added to another credit.

    low, high   the bounds, low <= 0 <= high: no gap gives no credit
    """

    low: float = -0.2
    high: float = 0.28

    needs = ("baseline",)
    on_equal = "signal"

    def __post_init__(self) -> None:
        if not self.low <= 0 <= self.high:
            raise ConfigError(f"clipped_gap: low {self.low} and high {self.high} must lie on either side of 0")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        return forest.to_path(clipped_gap(forest.outcome, signals["baseline"], self.low, self.high), "R")
