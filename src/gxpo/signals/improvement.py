"""Improvement of the mean reward over the last steps, in standard deviations (PIPO)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gxpo.errors import CheckpointError
from gxpo.levels import DEGENERATE
from gxpo.registry import part
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

BORROWED = ("replay", "demonstration", "baseline")  # origins of rollouts that don't say how the policy does


def improvement(history: Sequence[float], now: float, falling: float = 0.1, eps: float = 1e-6, ddof: int = 1) -> float:
    """phi((now - mean) / (std + eps)), mean and std (`ddof`) of `history` (two or more), phi(x) = x, below 0 falling x.

    0 where the history does not vary (max - min at most 1e-12 of the largest): there is nothing to measure by. Source:
    PIPO, arXiv 2604.00860, eqs. 7-9.

    >>> round(improvement([0.40, 0.42, 0.41, 0.43], 0.46, eps=0.0), 6)
    3.485685
    """
    low, high = min(history), max(history)
    if high - low <= DEGENERATE * max(abs(low), abs(high)):
        return 0.0
    std = statistics.stdev(history) if ddof else statistics.pstdev(history)
    x = (now - statistics.fmean(history)) / (std + eps)
    return x if x >= 0 else falling * x


@part("improvement", stage="signal")
@dataclass(frozen=True)
class Improvement(SignalPart):
    """The signal "improvement" [R], one number for all: `improvement` of the mean outcome over the last `window` steps.

    window   steps that the mean outcome is compared with; 0 is given until there have been as many
    falling  how much of a change for the worse is passed on
    eps      added to the standard deviation
    bound    the number is held in [-bound, bound]; the paper has no bound, and a window that hardly varies gives
             large numbers
    ddof     of the standard deviation: 1 in the paper, 0 in the authors' code

    The mean is over the scored and compared trajectories that the policy made in the step, each once.
    """

    window: Annotated[int, Ge(2)] = 8
    falling: Annotated[float, Ge(0)] = 0.1
    eps: Annotated[float, Ge(0)] = 1e-6
    bound: Annotated[float, Gt(0)] = math.inf
    ddof: Literal[0, 1] = 1
    memory: list[float] = field(init=False, repr=False, compare=False, default_factory=list)

    provides = ("improvement",)
    axes = {"improvement": "R"}  # noqa: RUF012  never changed

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        now, found = self._mean(forest), 0.0
        if now is not None and len(self.memory) == self.window:
            found = improvement(self.memory, now, self.falling, self.eps, self.ddof)
        held = min(max(found, -self.bound), self.bound)
        return {"improvement": torch.full((forest.n_trajectories,), held, dtype=torch.float64)}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        now = self._mean(forest)
        self.memory.extend([] if now is None else [now])
        del self.memory[: -self.window]
        return {}

    @staticmethod
    def _mean(forest: Forest) -> float | None:
        own = torch.tensor([origin not in BORROWED for origin in forest.origin], dtype=torch.bool)
        taken = forest.outcome[own & forest.scored & forest.compared]
        return float(taken.mean()) if taken.numel() else None

    def state_dict(self) -> dict[str, Any]:
        return {"means": list(self.memory)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"means"}:
            raise CheckpointError(f"the checkpoint's signal improvement holds {sorted(state)}, not 'means'")
        self.memory[:] = [float(x) for x in state["means"]]
