"""A baseline for each task: the mean of the newest outcomes that the policy had on it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.errors import CheckpointError, ConfigError
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@dataclass(frozen=True)
class NewestMean(SignalPart):
    """The signal "baseline" [R]: mean of the newest `window` outcomes of the task in the steps before; nan: none yet.

    What the policy did not sample in its step (replayed rollouts, demonstrations), unscored rollouts and those that are
    not compared are not remembered.
    """

    window: int = 20
    memory: dict[str, list[float]] = field(init=False, repr=False, compare=False, default_factory=dict)

    provides = ("baseline",)
    axes = {"baseline": "R"}  # noqa: RUF012  never changed

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"signal newest_mean: window {self.window} is at least 1")

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        of = {t: statistics.fmean(self.memory[t]) if t in self.memory else math.nan for t in set(forest.task)}
        return {"baseline": torch.tensor([of[t] for t in forest.task], dtype=torch.float64)}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        takes = (forest.scored & forest.compared).tolist()
        for task, outcome, origin, taken in zip(
            forest.task, forest.outcome.tolist(), forest.origin, takes, strict=True
        ):
            if taken and origin == "policy":
                self.memory[task] = [*self.memory.get(task, []), outcome][-self.window :]
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"tasks": {task: list(outcomes) for task, outcomes in self.memory.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"tasks"}:
            raise CheckpointError(f"the checkpoint's signal newest_mean holds {sorted(state)}, not 'tasks'")
        self.memory.clear()
        self.memory.update({task: [float(x) for x in outcomes] for task, outcomes in state["tasks"].items()})
