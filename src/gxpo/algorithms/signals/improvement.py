"""Improvement of the mean reward over the last steps, in standard deviations (PIPO)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gxpo.forest.grouped import DEGENERATE
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

BORROWED = ("replay", "demonstration", "baseline")  # origins of rollouts that do not measure the present policy


def standardised_gain(
    history: Sequence[float], now: float, decline_factor: float = 0.1, eps: float = 1e-6, ddof: int = 1
) -> float:
    """Standardised gain phi((now - mean) / (std + eps)) over `history` (two or more); phi(x) = x, below 0 falling x.

    0 where the history does not vary (max - min at most 1e-12 of the largest): there is nothing to measure by. Source:
    PIPO, arXiv 2604.00860, eqs. 7-9.

    >>> round(standardised_gain([0.40, 0.42, 0.41, 0.43], 0.46, eps=0.0), 6)
    3.485685
    """
    low, high = min(history), max(history)
    # A flat history has no unit to measure by.
    if high - low <= DEGENERATE * max(abs(low), abs(high)):
        return 0.0
    std = statistics.stdev(history) if ddof else statistics.pstdev(history)
    x = (now - statistics.fmean(history)) / (std + eps)
    return x if x >= 0 else decline_factor * x


@part("improvement", stage="signal", gives={"improvement": "R"}, remembers=("means",))
def improvement(
    forest: Forest,
    past: Mapping[str, list[float]],
    *,
    window: Annotated[int, Ge(2)] = 8,
    decline_factor: Annotated[float, Ge(0)] = 0.1,
    eps: Annotated[float, Ge(0)] = 1e-6,
    bound: Annotated[float, Gt(0)] = math.inf,
    ddof: Literal[0, 1] = 1,
) -> tuple[Tensor, dict[str, Any], dict[str, float]]:
    """The signal "improvement" [R], one number for all: `standardised_gain` of the mean outcome over the last `window`
    steps (PIPO).

    window   steps that the mean outcome is compared with; 0 is given until there have been as many
    decline_factor  how much of a change for the worse is passed on
    eps      added to the standard deviation
    bound    the number is held in [-bound, bound]; the paper has no bound, and a window that hardly varies gives
             large numbers
    ddof     of the standard deviation: 1 in the paper, 0 in the authors' code

    The mean is over the scored and compared trajectories that the policy made in the step, each once.
    """
    # Replayed and demonstrated rollouts measure other policies than the present one.
    is_from_policy = torch.tensor([origin not in BORROWED for origin in forest.origin], dtype=torch.bool)
    outcomes = forest.outcome[is_from_policy & forest.scored & forest.compared]
    mean_now, means, gain = ([float(outcomes.mean())] if outcomes.numel() else []), past.get("means", []), 0.0
    # Until the window is full its std is no yardstick: the gain is 0.
    if mean_now and len(means) == window:
        gain = standardised_gain(means, mean_now[0], decline_factor, eps, ddof)
    bounded_gain = min(max(gain, -bound), bound)
    improvement_R = torch.full((forest.n_trajectories,), bounded_gain, dtype=torch.float64)
    return improvement_R, {"means": [*means, *mean_now][-window:]}, {}
