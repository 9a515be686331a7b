"""Base of generated task sources: keyed random streams, the held-out split by content, drawing."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gxpo.errors import TaskError, did_you_mean
from gxpo.protocols import Task

if TYPE_CHECKING:
    from gxpo.forest import Forest

Scorer = Callable[[str, Task], Mapping[str, float]]

Author = Callable[[str, int], int]  # (question, its value) -> what a writer of worked examples puts down

TRAINING, HELD_OUT = 0, 1  # first word of a stream's key
HELD_OUT_SHARE = 4  # one content in four is held out
FRUITLESS = 256  # proposals in a row after which a generator counts as having nothing new


def exact(question: str, value: int) -> int:
    """An author of worked examples that never errs."""
    return value


def stream(*key: int) -> np.random.Generator:
    """Random generator that depends on `key` (non-negative integers) alone."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def fraction_of(content: str) -> float:
    """Hash `content` to [0, 1), independent of seed, machine and version."""
    digest = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def reserved(content: str) -> bool:
    """Whether tasks of this content are held out; all others are for training and warm-up."""
    return fraction_of(content) < 1 / HELD_OUT_SHARE


def solution_of(source: Any, task: Task) -> str | None:
    """Worked solution of a task: its own `info["solution"]`, or one written by its source."""
    if "solution" in task.info:
        return task.info["solution"]
    write = getattr(source, "worked_example", None)
    return None if write is None else write(task)


def check_options(task: str, options: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise an error for options that `task` does not have or that have the wrong type."""
    for name, value in options.items():
        if name not in known:
            raise TaskError(f"task {task!r} has no option {name!r}{did_you_mean(name, known)}")
        kind = known[name]
        expected = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            wanted = " or ".join(t.__name__ for t in expected)
            raise TaskError(f"task {task!r}: option {name!r} must be {wanted}, not {value!r}")


class GeneratedTasks(ABC):
    """Base of sources that generate tasks at random; they have no state.

    Task `i` of a step comes from the stream (seed, step, i), so `draw(n, step)` is the beginning of `draw(m, step)` for
    n <= m: to get more tasks in a step, draw a longer list and take its end. Held-out tasks are the same for every
    seed. Training and held-out tasks differ in content: a quarter of all contents, chosen by their hash, is reserved.
    """

    name: str
    seed: int
    scorer_name: str
    scorer: Scorer
    reward_default = "correct"

    @abstractmethod
    def propose(self, random: np.random.Generator) -> Task:
        """Generate a task, of any content, with its `id` and `info`."""

    def content(self, task: Task) -> str:
        """Content by which tasks are the same to a learner; equal contents are always on one side of the split."""
        return task.id

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw `n` training tasks, distinct unless the generator has too few."""
        tasks: list[Task] = []
        seen: set[str] = set()
        for i in range(n):
            tasks.append(self._next(stream(TRAINING, self.seed, step, i), held_out=False, seen=seen))
            seen.add(tasks[-1].id)
        return tasks

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks with distinct ids; fewer if the generator has fewer."""
        tasks: dict[str, Task] = {}
        random = stream(HELD_OUT)
        while len(tasks) < n:
            task = self._next(random, held_out=True, seen=tasks.keys())
            if task.id in tasks:
                break
            tasks[task.id] = task
        return list(tasks.values())

    def _next(self, random: np.random.Generator, *, held_out: bool, seen: Collection[str]) -> Task:
        repeated = None
        for _ in range(FRUITLESS * HELD_OUT_SHARE):
            task = self.propose(random)
            if reserved(self.content(task)) != held_out:
                continue
            if task.id not in seen:
                return task
            repeated = task
        if repeated is None:
            side = "held-out" if held_out else "training"
            raise TaskError(f"task {self.name!r} with these options has no {side} tasks: make it harder")
        return repeated

    def observe(self, forest: Forest) -> None:  # noqa: B027  # most sources have nothing to remember
        """Does nothing: results don't change the tasks."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise TaskError(f"task {self.name!r} keeps no state, but the checkpoint holds {sorted(state)}")
