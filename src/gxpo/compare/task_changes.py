"""What changed from base to arm, task by held-out task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gxpo.compare.results import RunResult


@dataclass(frozen=True)
class TaskChange:
    """A held-out task in the last evaluation: its mean verdict over the paired seeds."""

    task: str
    base: float
    arm: float

    @property
    def change(self) -> float:
        return self.arm - self.base


def task_changes(arm: Sequence[RunResult], base: Sequence[RunResult]) -> list[TaskChange]:
    """Every task that a run of the arm and the base's run of the same seed both recorded, from the largest gain to the
    largest loss; equal ones by name."""
    others = {run.seed: run for run in base}
    sums: dict[str, tuple[float, float, int]] = {}
    for run in arm:
        other = others[run.seed].after if run.seed in others else {}
        for task in run.after.keys() & other.keys():
            before, after, n = sums.get(task, (0.0, 0.0, 0))
            sums[task] = (before + other[task], after + run.after[task], n + 1)
    found = [TaskChange(task, before / n, after / n) for task, (before, after, n) in sums.items()]
    return sorted(found, key=lambda c: (-c.change, c.task))
