"""Epochs: positions of a run's steps in a finite list of tasks, so that each epoch has every task exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

KINDS = (".jsonl", ".csv", ".parquet")  # of files of tasks
FIRST_STEP = 1  # number of a run's first step, which begins at the first place of the first epoch


class Epochs:
    """Base of sources that go through a finite list, epoch by epoch.

    per_step    tasks that a step draws: step s begins at position (s - first_step) * per_step
    first_step  step that begins the first epoch; a checkpoint without one is of a run that counted from 0, which loses
                the first `per_step` tasks of its first epoch, and goes on so
    """

    per_step: int
    first_step: int = FIRST_STEP

    def count_from(self, step: int) -> None:
        """Let the first epoch begin at this step."""
        self.first_step = step

    def places(self, size: int, n: int, step: int, order: Callable[[int], Any]) -> list[int]:
        """Places in a list of `size` of the `n` tasks that a step draws.

        order  epoch -> permutation of the places, which is made once for each epoch that the step touches
        """
        begin = max(step - self.first_step, 0) * self.per_step
        orders: dict[int, Any] = {}
        out = []
        for position in range(begin, begin + n):
            epoch, place = divmod(position, size)
            if epoch not in orders:
                orders[epoch] = order(epoch)
            out.append(int(orders[epoch][place]))
        return out


def count_from(source: Any, step: int) -> None:
    """Let the epochs of a source begin at this step, if it has any."""
    if (count := getattr(source, "count_from", None)) is not None:
        count(step)


def goes_by_epochs(keys: Mapping[str, Any]) -> bool:
    """Return True if the keys of a run name a finite list of tasks: a file, a data set, rows of a function, a pool.

    >>> goes_by_epochs({"task": "q.jsonl"}), goes_by_epochs({"task": "arithmetic"})
    (True, False)
    >>> goes_by_epochs({"task": "frozenlake", "tasks.options": {"pool": 8}})
    True
    """
    phases = keys.get("phases")
    listed = [p for p in phases if isinstance(p, Mapping)] if isinstance(phases, (list, tuple)) else []
    return any(map(_is_finite, (keys, *listed)))


def _is_finite(keys: Mapping[str, Any]) -> bool:
    name, nested = str(keys.get("task", "")), keys.get("tasks")
    options = nested.get("options") if isinstance(nested, Mapping) else keys.get("tasks.options")
    pool = "tasks.options.pool" in keys or (isinstance(options, Mapping) and "pool" in options)
    is_code = name.rpartition(":")[0].endswith(".py")  # an environment, or rows: only its code tells
    return pool or is_code or name.endswith(KINDS) or name.startswith("dataset:")
