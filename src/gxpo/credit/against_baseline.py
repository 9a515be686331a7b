"""Credit of a whole trajectory: its outcome against a baseline that somebody else has worked out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.credit.base import CreditPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def against_baseline(outcome: Tensor, baseline: Tensor) -> Tensor:
    """A = outcome - baseline of each trajectory; [R], [R] -> [R] float64. Nothing is scaled.

    The gradient is unbiased where the baseline of a trajectory does not depend on that trajectory's own actions.

    >>> against_baseline(torch.tensor([1.0, 0.0]), torch.tensor([0.25, 0.75])).tolist()
    [0.75, -0.75]
    """
    if outcome.shape != baseline.shape:
        raise ValueError(
            f"outcomes {tuple(outcome.shape)} and baselines {tuple(baseline.shape)} must be one column each"
        )
    return outcome.to(torch.float64) - baseline.to(torch.float64)


@dataclass(frozen=True)
class AgainstBaseline(CreditPart):
    """`against_baseline` with the signal "baseline" [R], the same for every token of a trajectory.

    A group of equal outcomes that differ from their baselines learns.
    """

    needs = ("baseline",)
    on_equal = "signal"

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        return forest.to_path(against_baseline(forest.outcome, signals["baseline"]), "R")
