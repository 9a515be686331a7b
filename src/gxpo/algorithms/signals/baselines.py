"""Baselines measured outside the step's groups: a task's earlier outcomes, greedy or reference rollouts."""

from __future__ import annotations

import math
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

    s, n      sum and number of the task's outcomes in the steps before, earlier ones multiplied by `discount` at each
              visit, since the policy has moved;   m  the same mean over all tasks
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
        # Replayed rollouts and demonstrations do not tell how the policy does at the task.
        takes = forest.scored & forest.compared & torch.tensor([o == "policy" for o in forest.origin])
        # Errors are of the prediction made before this step's outcomes are added to the memory.
        prediction = self.compute(forest, signals, tools)["baseline"]
        figures = baseline_errors(forest, prediction, takes)
        outcomes_by_task: dict[str, list[float]] = {}
        for row in takes.nonzero().squeeze(1).tolist():
            outcomes_by_task.setdefault(forest.task[row], []).append(float(forest.outcome[row]))
        self.memory.add(outcomes_by_task)
        return figures

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.load_state_dict(state, "signal task_mean")


def baseline_errors(forest: Forest, baseline: Tensor, takes: Tensor) -> dict[str, float]:
    """Mean squared errors of a baseline [R] and of the leave-one-out mean, over the trajectories of `takes` [R] bool
    that have both; without any: no figures."""
    group, outcome = forest.ids("group", axis="R"), torch.where(takes, forest.outcome, 0.0)
    # Both baselines on the same trajectories, or the two errors could not be compared.
    has_both_R = takes & (grouped.count(group, takes) > 1) & baseline.isfinite()
    if not bool(has_both_R.any()):
        return {}
    errors = {"baseline_error": baseline, "group_mean_error": grouped.leave_one_out(outcome, group, takes)}
    return {name: float((outcome - x)[has_both_R].square().mean()) for name, x in errors.items()}


BASELINE = "baseline"  # origin of such rollouts, and key of the info that holds a number measured in an earlier step


@torch.no_grad()
def measured_baseline(outcome: Tensor, group: Tensor, measures: Tensor, paired: bool = False) -> Tensor:
    """Mean outcome of the group's baseline rollouts, or of each rollout's partner among them; [R] float64.

    outcome   [R], nan unscored: such a rollout measures nothing
    group     [R] int64 dense ids
    measures  [R] bool: baseline rollouts. They, and trajectories whose group has no scored one, have their own outcome
              as baseline (0 where unscored): nothing is learned from them
    paired    the i-th member of a group has the i-th measuring rollout's outcome

    >>> outcome, group = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4, dtype=torch.int64)
    >>> measures = torch.tensor([False, False, True, True])
    >>> measured_baseline(outcome, group, measures).tolist()
    [0.5, 0.5, 0.0, 1.0]
    >>> measured_baseline(outcome, group, measures, paired=True).tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    is_scored_R = outcome.isfinite()
    outcome_R = torch.where(is_scored_R, outcome.to(torch.float64), 0.0)
    ids = group
    # Pairs by rank: the i-th member with the i-th of the measuring ones; ids of (group, rank).
    if paired and group.numel():
        rows = torch.arange(group.numel())
        place = torch.where(measures, grouped.rank(rows, group, measures), grouped.rank(rows, group, ~measures)).long()
        ids = torch.where(group >= 0, group * (int(place.max()) + 1) + place, -1)
    is_measuring_R = measures & is_scored_R
    return torch.where(
        ~measures & (grouped.count(ids, is_measuring_R) > 0), grouped.mean(outcome_R, ids, is_measuring_R), outcome_R
    )


@part("rollout_baseline", stage="signal", gives={"baseline": "R"})
def rollout_baseline(forest: Forest, *, paired: bool = False) -> Tensor:
    """The signal "baseline" [R]: `measured_baseline` of the group's rollouts of origin "baseline".

    A number "baseline" in a trajectory's info, measured in an earlier step, goes before it.

    paired  see `measured_baseline`
    """
    measures = torch.tensor([origin == BASELINE for origin in forest.origin], dtype=torch.bool)
    measured_R = measured_baseline(forest.outcome, forest.ids("group", axis="R"), measures, paired)
    earlier_R = torch.tensor([info.get(BASELINE, math.nan) for info in forest.info], dtype=torch.float64)
    return torch.where(earlier_R.isfinite(), earlier_R, measured_R)
