"""Baseline from a task's history: the mean reward of its earlier rollouts, discounted or over a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.signals.base import SignalPart, SignalTools
from gxpo.forest import grouped
from gxpo.parts.registry import part
from gxpo.parts.task_memory import TaskMemory

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@part("task_mean", stage="signal")
@dataclass(frozen=True)
class TaskMean(SignalPart):
    """The signal "baseline" [R]: V = (s + prior m) / (n + prior), nan until there is data.

    s, n      sum and number of the task's outcomes in the steps before, each visit multiplying what came earlier by
              `discount`, since the policy has moved;   m  the same mean over all tasks
    prior     weight of the mean over all tasks, in outcomes. Above 0, a task never seen is predicted to be like the
              others; 0: its own outcomes alone, so that a task never seen has no prediction
    window    None, or how many of the task's newest outcomes make s and n; these are not discounted

    No outcome of the step is in its predictions. Unscored rollouts, those that are not compared, replayed ones and
    demonstrations are not remembered.

    Figures, over the scored and compared trajectories of groups of several that have a prediction: baseline_error
    (mean (outcome - V)^2) next to group_mean_error (the same of the mean outcome of the others).

    With these settings this is
      V0.5       discount 0.8, prior 1 in the place of its language model that predicts   arXiv 2603.10848
      AVATAR     prior 0, window 20                                                       arXiv 2508.03100
    """

    discount: Annotated[float, Interval(ge=0, le=1)] = 0.8
    prior: Annotated[float, Ge(0)] = 1.0
    window: Annotated[int, Ge(1)] | None = None
    memory: TaskMemory = field(init=False, repr=False, compare=False)

    provides = ("baseline",)
    axes = {"baseline": "R"}  # noqa: RUF012  never changed

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", TaskMemory(self.discount, self.window))

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        return {"baseline": torch.tensor(self.memory.predict(forest.task, self.prior), dtype=torch.float64)}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        takes = forest.scored & forest.compared & torch.tensor([o == "policy" for o in forest.origin])
        prediction = self.compute(forest, signals, tools)["baseline"]
        figures = baseline_errors(forest, prediction, takes)
        new: dict[str, list[float]] = {}
        for row in takes.nonzero().squeeze(1).tolist():
            new.setdefault(forest.task[row], []).append(float(forest.outcome[row]))
        self.memory.add(new)
        return figures

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.load_state_dict(state, "signal task_mean")


def baseline_errors(forest: Forest, baseline: Tensor, takes: Tensor) -> dict[str, float]:
    """Mean squared errors of a baseline [R] and of the leave-one-out mean, over the trajectories of `takes` [R] bool
    that have both; without any: no figures."""
    group, outcome = forest.ids("group", axis="R"), torch.where(takes, forest.outcome, 0.0)
    kept = takes & (grouped.count(group, takes) > 1) & baseline.isfinite()
    if not bool(kept.any()):
        return {}
    errors = {"baseline_error": baseline, "group_mean_error": grouped.leave_one_out(outcome, group, takes)}
    return {name: float((outcome - x)[kept].square().mean()) for name, x in errors.items()}
