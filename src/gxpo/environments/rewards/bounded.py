"""Calls of gxpo's own rewards whose cost a task or a policy can raise: in worker processes, with a limit of work.

A regular expression of a configuration, a JSON Schema of a task or a pair of large tables can take hours for a short
text, and nothing ends that inside the process. Such calls run where a user's rewards do, each with a limit of processor
time, which a loaded machine does not change.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.environments.rewards.pool import Workers
from gxpo.environments.rewards.worker import Reply


@dataclass(eq=False)
class Bounded:
    """A function that other processes can import, called there: each call may compute for `seconds`.

    function   gives a number or named numbers;   label  what errors call it
    rehearsal  arguments of a call that imports what the function is slow to get, before any clock runs
    processes  they start with the first call, and share the calls

    A reply is ("ok", value), or a status of `rewards.worker` with a message: "limit" for a call that took longer.
    """

    function: Callable[..., Any]
    label: str
    rehearsal: tuple[Any, ...] | None = None
    seconds: float = 5.0
    processes: int = 1
    _workers: Workers | None = field(default=None, init=False, repr=False)

    def run(self, calls: Sequence[tuple[Any, ...]]) -> list[Reply]:
        """Replies to calls, each a tuple of arguments, in order."""
        if not calls:
            return []
        if self._workers is None:
            rehearsal = None if self.rehearsal is None else pickle.dumps((self.rehearsal, {}))
            source = {"pickle": pickle.dumps(self.function), "label": self.label, "is_scorer": True,
                      "rehearsal": rehearsal, "computes": True}  # fmt: skip
            self._workers = Workers([source], timeout=self.seconds, count=self.processes)
        return self._workers.run([(0, pickle.dumps((call, {}))) for call in calls])

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None
