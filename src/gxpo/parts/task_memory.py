"""Outcome statistics per task across steps: a discounted mean, or the mean of the newest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import CheckpointError


@dataclass
class TaskMemory:
    """Running statistics of outcomes, by task id.

    discount  what earlier numbers of a task count for at each further visit, since the policy has moved
    window    None: all of them count, and sum and number are kept; else the newest so many alone, undiscounted
    whole     of a window: where the newest visit had more, all of it counts

    >>> memory = TaskMemory(discount=0.5)
    >>> memory.add({"a": [1.0, 0.0]})
    >>> memory.add({"a": [1.0]})
    >>> memory.predict(["a", "b"]), memory.predict(["a", "b"], prior=1.0)
    ([0.75, nan], [0.75, 0.75])
    """

    discount: float = 1.0
    window: int | None = None
    rows: dict[str, list[float]] = field(default_factory=dict)
    whole: bool = False

    def add(self, outcomes_by_task: Mapping[str, Sequence[float]]) -> None:
        """Add one visit of each of these tasks."""
        for task, values in outcomes_by_task.items():
            if self.window is not None:
                n_kept = max(self.window, len(values)) if self.whole else self.window
                self.rows[task] = [*self.rows.get(task, []), *values][-n_kept:]
                continue
            total, count = self.rows.get(task, (0.0, 0.0))
            self.rows[task] = [self.discount * total + math.fsum(values), self.discount * count + len(values)]

    def predict(
        self, tasks: Sequence[str], prior: float = 0.0, initial: float = math.nan, mean: float | None = None
    ) -> list[float]:
        """Expected outcome of each task: (sum + prior * m) / (number + prior); nan where nothing is known.

        m is `mean`, by default the mean over all tasks, `initial` before there is any. Of verdicts, prior 2 with mean
        1/2 gives the means of Beta(1 + successes, 1 + failures).
        """
        sums = {task: self._sum(row) for task, row in self.rows.items()}
        if mean is None and prior:
            total, count = (math.fsum(row[k] for row in sums.values()) for k in (0, 1))
            mean = total / count if count else initial
        # shrink a task with few outcomes towards the mean: one success of one is no certainty
        pseudo = prior * mean if prior and mean is not None else 0.0
        # a task that was never seen gets the prior alone
        sums_of_tasks = (sums.get(task, (0.0, 0.0)) for task in tasks)
        return [(s + pseudo) / (n + prior) if n + prior else math.nan for s, n in sums_of_tasks]

    def count(self, task: str) -> float:
        """Number of outcomes of a task in its statistics, discounted."""
        return self._sum(self.rows[task])[1] if task in self.rows else 0.0

    def _sum(self, row: Sequence[float]) -> tuple[float, float]:
        return (row[0], row[1]) if self.window is None else (math.fsum(row), float(len(row)))

    def state_dict(self) -> dict[str, Any]:
        """State for the checkpoint, as JSON."""
        return {"tasks": {task: list(row) for task, row in self.rows.items()}}

    def load_state_dict(self, state: Mapping[str, Any], owner: str = "task memory") -> None:
        """The inverse of `state_dict`; `owner` names the part in the error."""
        if set(state) != {"tasks"}:
            raise CheckpointError(f"the checkpoint's {owner} holds {sorted(state)}, not 'tasks'")
        self.rows.clear()
        self.rows.update({task: [float(x) for x in row] for task, row in state["tasks"].items()})
