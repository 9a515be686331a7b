"""Signals of denoising models: another policy's predictions, and a buffer of each task's rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.signals.base import OwnModel, SignalPart, SignalTools
from gxpo.forest import grouped
from gxpo.parts.registry import part
from gxpo.parts.task_memory import TaskMemory

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


def decay_at(step: int, growth: float, max_decay: float, flat_steps: int = 0) -> float:
    """Decay of a moving average of parameters at a step: growth (step - flat), from 0 up to `max_decay`.

    >>> [decay_at(step, 0.001, 0.3) for step in (0, 100, 900)]
    [0.0, 0.1, 0.3]
    """
    return min(max(growth * (step - flat_steps), 0.0), max_decay)


@part("anchor", stage="signal")
@dataclass(frozen=True)
class Anchor(OwnModel):
    """Predictions of a moving average of the policy on re-noised samples, "anchor_prediction" [P, D].

    theta_anchor <- d theta_anchor + (1 - d) theta after each step, d = min(growth * (step - flat_steps), max_decay), at
    least 0

    max_decay  1 with `growth` 1: the anchor stays the policy that the run began with

    Costs a forward pass, and the trained parameters once more. Sources: AWM (0.001, 0.3), DiffusionNFT (0.001, 0.5; or
    flat 75 steps, then 0.0075 up to 0.999).
    """

    growth: Annotated[float, Ge(0)] = 0.001
    max_decay: Annotated[float, Interval(ge=0, le=1)] = 0.5
    flat_steps: Annotated[int, Ge(0)] = 0

    provides = ("anchor_prediction",)

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        return {"anchor_prediction": self.model.outputs(forest, ("prediction",))["prediction"]}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        decay = decay_at(tools.step, self.growth, self.max_decay, self.flat_steps)
        self.model.follow(tools.learner, 1 - decay)
        return {"anchor_decay": decay}

    def tensors(self) -> dict[str, Tensor]:
        return {name: x.cpu() for name, x in self.model.snapshot().items()} if "model" in self.memory else {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.model.restore(tensors)


@part("reward_buffer", stage="signal")
@dataclass(frozen=True)
class RewardBuffer(SignalPart):
    """Mean and population std of a task's newest outcomes, this step's included: "baseline" and "spread", both [R].

    window  how many of a task are stored
    min_rollouts  a task with fewer has the mean and std of the step's outcomes

    Unscored trajectories and those that are not compared are not stored. Source: DDPO's per-prompt statistics, arXiv
    2305.13301, and its code (16 and 16).
    """

    window: Annotated[int, Ge(1)] = 16
    min_rollouts: Annotated[int, Ge(1)] = 16
    memory: TaskMemory = field(init=False, repr=False, compare=False)

    provides = ("baseline", "spread")
    axes = {"baseline": "R", "spread": "R"}  # noqa: RUF012  never changed

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", TaskMemory(window=self.window))

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        is_counted_R = forest.scored & forest.compared
        new_outcomes: dict[str, list[float]] = {}
        for row in is_counted_R.nonzero().squeeze(1).tolist():
            new_outcomes.setdefault(forest.task[row], []).append(float(forest.outcome[row]))
        mean, std = grouped.mean_and_std(
            forest.outcome, torch.zeros(forest.n_trajectories, dtype=torch.int64), is_counted_R, ddof=0
        )
        out = torch.stack([mean, std], 1)
        for row, task in enumerate(forest.task):
            outcomes = torch.tensor([*self.memory.rows.get(task, []), *new_outcomes.get(task, [])], dtype=torch.float64)
            if len(outcomes) >= self.min_rollouts:
                window = outcomes[-self.window :]
                out[row] = torch.stack([window.mean(), window.std(correction=0)])
        return {"baseline": out[:, 0], "spread": out[:, 1]}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        new_outcomes: dict[str, list[float]] = {}
        for row in (forest.scored & forest.compared).nonzero().squeeze(1).tolist():
            new_outcomes.setdefault(forest.task[row], []).append(float(forest.outcome[row]))
        self.memory.add(new_outcomes)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.load_state_dict(state, "signal reward_buffer")
