"""A prediction for each task, made from what it paid in earlier steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import CheckpointError, ConfigError
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@dataclass(frozen=True)
class TaskMean(SignalPart):
    """The signal "baseline" [R]: V = (s + prior m) / (n + prior), nan as long as nothing has been seen of any task.

    s, n   sum and number of the task's outcomes in the steps before, each visit multiplying what came earlier by
           `discount`, since the policy has moved;   m  the same mean over all tasks
    prior  how many outcomes the mean over all tasks is worth; a task never seen is predicted to be like the others

    No outcome of the step is in its predictions. Replayed rollouts and demonstrations are not learned from.

    Figures, over the scored and compared trajectories of groups of several that have a prediction: baseline_error
    (mean (outcome - V)^2) beside group_mean_error (the same of the mean outcome of the others).
    """

    discount: float = 0.8
    prior: float = 1.0
    memory: dict[str, list[float]] = field(init=False, repr=False, compare=False, default_factory=dict)

    provides = ("baseline",)
    axes = {"baseline": "R"}  # noqa: RUF012  never changed

    def __post_init__(self) -> None:
        if not 0 <= self.discount <= 1 or not self.prior > 0:
            raise ConfigError(
                f"signal task_mean: discount {self.discount} must be from 0 to 1 and prior {self.prior} above 0"
            )

    def predict(self, tasks: list[str]) -> list[float]:
        """V of each of these tasks."""
        total, count = (math.fsum(row[k] for row in self.memory.values()) for k in (0, 1))
        if not count:
            return [math.nan] * len(tasks)
        own = (self.memory.get(task, (0.0, 0.0)) for task in tasks)
        return [(s + self.prior * total / count) / (n + self.prior) for s, n in own]

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        return {"baseline": torch.tensor(self.predict(forest.task), dtype=torch.float64)}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        takes = forest.scored & forest.compared & torch.tensor([o == "policy" for o in forest.origin])
        figures = self._errors(forest, takes)
        new: dict[str, list[float]] = {}
        for task, outcome, taken in zip(forest.task, forest.outcome.tolist(), takes.tolist(), strict=True):
            if taken:
                new.setdefault(task, []).append(outcome)
        for task, outcomes in new.items():
            s, n = self.memory.get(task, (0.0, 0.0))
            self.memory[task] = [self.discount * s + math.fsum(outcomes), self.discount * n + len(outcomes)]
        return figures

    def _errors(self, forest: Forest, takes: Tensor) -> dict[str, float]:
        group = forest.ids("group", axis="R")
        outcome = torch.where(takes, forest.outcome, 0.0)
        prediction = torch.tensor(self.predict(forest.task), dtype=torch.float64)
        kept = takes & (levels.count(group, takes) > 1) & prediction.isfinite()
        if not bool(kept.any()):
            return {}
        others = levels.leave_one_out(outcome, group, takes)
        errors = {"baseline_error": outcome - prediction, "group_mean_error": outcome - others}
        return {name: float(error[kept].square().mean()) for name, error in errors.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"tasks": {task: list(row) for task, row in self.memory.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"tasks"}:
            raise CheckpointError(f"the checkpoint's signal task_mean holds {sorted(state)}, not 'tasks'")
        self.memory.clear()
        self.memory.update({task: [float(x) for x in row] for task, row in state["tasks"].items()})
