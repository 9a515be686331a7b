"""Measured success rates of tasks, and the variance of outcomes and log-probs within their groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.base.errors import CheckpointError
from gxpo.parts.task_memory import TaskMemory

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

EQUAL = 1e-12  # of the largest magnitude: values that differ by no more are equal


@dataclass
class Visit:
    """Results of a step's answers to one task: verdicts (0 or 1), outcomes, mean log-probs a token."""

    verdicts: list[float] = field(default_factory=list)
    outcomes: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def mixed(self) -> bool:
        """True if some answers were right and some wrong."""
        return min(self.verdicts) < max(self.verdicts)


def visits_of(forest: Forest) -> dict[str, Visit]:
    """Visits by task: the policy's own answers that have a verdict, without replayed, shown and hinted ones."""
    visit_by_task: dict[str, Visit] = {}
    lengths = forest.lengths().clamp_min(1)
    total = torch.zeros(forest.n_trajectories, dtype=torch.float64)
    total.index_add_(0, forest.path_trajectory, forest.path_behaviour_logprob.to(torch.float64))
    columns = (forest.success.tolist(), forest.task_outcome.tolist(), (total / lengths).tolist())
    for task, origin, success, outcome, logprob in zip(forest.task, forest.origin, *columns, strict=True):
        if origin != "policy" or not math.isfinite(success):
            continue
        # outcome and log-prob may be unknown where the verdict is not
        visit = visit_by_task.setdefault(task, Visit())
        visit.verdicts.append(float(success >= 1))
        visit.outcomes += [outcome] if math.isfinite(outcome) else []
        visit.logprobs += [logprob] if math.isfinite(logprob) else []
    return visit_by_task


def spread(values: Sequence[float]) -> float:
    """Population variance; exactly 0 where all are equal.

    >>> spread([1.0, 0.0, 0.0, 1.0]), spread([0.1, 0.1, 0.1])
    (0.25, 0.0)
    """
    if max(values) - min(values) <= EQUAL * max(map(abs, values)):
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.fsum((x - mean) ** 2 for x in values) / len(values)


class SuccessRates:
    """Success rates by name (a task's id or a level) from the visits of earlier steps.

    discount  what earlier numbers count for at each further visit, since the policy has moved
    prior     verdicts, half of them right, that a rate begins with: 2 gives the mean of Beta(1 + right, 1 + wrong)
    window    visits of which `recent` is the mean
    """

    def __init__(self, discount: float, prior: float, window: int) -> None:
        self.discount, self.prior, self.window = discount, prior, window
        self.memories = {
            "verdicts": TaskMemory(discount),
            "recent": TaskMemory(window=window),
            "visits": TaskMemory(discount),
            "outcome_variance": TaskMemory(discount),
            "logprob_variance": TaskMemory(discount),
        }
        self.streaks: dict[str, int] = {}

    def add(self, name: str, visits: Sequence[Visit]) -> None:
        """Add one visit of a name: the answers to all its tasks in a step."""
        verdicts = [x for visit in visits for x in visit.verdicts]
        values_by_memory = {
            "verdicts": verdicts,
            "recent": [math.fsum(verdicts) / len(verdicts)],
            "visits": [math.fsum(verdicts) / len(verdicts)],
            "outcome_variance": [spread(v.outcomes) for v in visits if v.outcomes],
            "logprob_variance": [spread(v.logprobs) for v in visits if v.logprobs],
        }
        # a group without outcomes or log-probs leaves those memories as they are
        for key, values in values_by_memory.items():
            if values:
                self.memories[key].add({name: values})
        self.streaks[name] = self.streaks.get(name, 0) + 1 if min(verdicts) == 1.0 else 0

    def column(self, column: str, names: Sequence[str]) -> Tensor:
        """Column of the names, [N] float64: `rate`, `smoothed`, `counted`, `recent`, `streak`, `outcome_variance` or
        `logprob_variance`; nan where nothing is known, except for rates and counts."""
        memory = self.memories
        if column == "rate":
            values: Sequence[float] = memory["verdicts"].predict(names, self.prior, mean=0.5)
            values = [0.5 if math.isnan(x) else x for x in values]  # without a prior
        elif column == "smoothed":
            # a <- discount a + (1 - discount) p from a = 1/2: with the discounted sum s and number n of the visits'
            # rates p, a = 1/2 + (1 - discount) (s - n / 2)
            sizes = [memory["visits"].count(name) for name in names]
            means = memory["visits"].predict(names)
            values = [
                0.5 + (1 - self.discount) * n * (mean - 0.5) if n else 0.5 for n, mean in zip(sizes, means, strict=True)
            ]
        elif column == "counted":
            values = [memory["verdicts"].count(name) for name in names]
        elif column == "streak":
            values = [self.streaks.get(name, 0) for name in names]
        elif column == "recent":
            # the mean of fewer visits than the window would let a level pass after one lucky visit
            full = (memory["recent"].count(name) >= self.window for name in names)
            means = memory["recent"].predict(names)
            values = [x if enough else math.nan for x, enough in zip(means, full, strict=True)]
        else:
            values = memory[column].predict(names)
        return torch.tensor(values, dtype=torch.float64)

    def names(self) -> set[str]:
        """Names that were visited."""
        return set(self.streaks)

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint, as JSON."""
        return {"streaks": dict(self.streaks), **{key: m.state_dict()["tasks"] for key, m in self.memories.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        state = {"visits": {}, **state}  # which checkpoints may lack
        if set(state) != {"streaks", *self.memories}:
            raise CheckpointError(f"the checkpoint's tasks.sampler holds {sorted(state)}")
        self.streaks = {name: int(x) for name, x in state["streaks"].items()}
        for key, memory in self.memories.items():
            memory.load_state_dict({"tasks": state[key]}, "tasks.sampler")
