"""Environment instances as tasks: one task per seed, split by the instance's content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from gxpo.environments.tasks.epochs import Pool, check_pool, too_few
from gxpo.environments.tasks.source import GeneratedTasks, stream
from gxpo.parts.protocols import Task

POOL = 3  # first word of the key of a pool's stream; 0 and 1 are training and held-out, 2 the warm-up


@dataclass
class SeedTasks(GeneratedTasks, Pool):
    """Tasks `LABEL/DIGEST` of the environment called `name`, with `info["seed"]`, and where the environment says them
    the right answer and `info["level"]`, how hard it is.

    contents  contents of the instances of some seeds, as texts: equal texts are one instance, and one task
    pool      train on that many instances only, the same for every seed of a run (they will be memorised, which
              `pool_tasks` against `held_out` shows); None: a new one for every draw
    answers   right answers in the instances of some seeds, as texts; None if the environment does not say
    levels    how hard the instances of some seeds are, whole numbers; None if the environment does not say
    label     what the tasks' ids begin with, and with that their random numbers: of a file its last name, so that the
              tasks are the same wherever it lies; "": the name. Checkpoints hold it: a run of 0.1.0 goes on with the
              path as it was typed
    per_step  tasks that the trainer draws a step, by which the epochs of a pool are cut
    """

    name: str
    contents: Callable[[Sequence[int]], list[str]]
    seed: int = 0
    pool: int | None = None
    answers: Callable[[Sequence[int]], Sequence[str | None]] | None = None
    label: str = ""
    levels: Callable[[Sequence[int]], Sequence[int | None]] | None = None
    per_step: int = 32
    _known: dict[int, str] = field(default_factory=dict, repr=False)

    scorer: ClassVar[None] = None  # type: ignore[assignment]  # the environment scores
    components: ClassVar[tuple[str, ...]] = ("env",)
    reward_default: ClassVar[str] = "env"

    def __post_init__(self) -> None:
        if self.pool is not None:
            check_pool(self.name, self.pool)
        self.label = self.label or self.name

    def propose(self, random: np.random.Generator) -> Task:
        seed = int(random.integers(2**31))
        content = self.contents([seed])[0]
        digest = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        if len(self._known) > 4096:
            self._known.clear()
        self._known[seed] = content
        return Task(f"{self.label}/{digest}", "", info={"seed": seed})

    def content(self, task: Task) -> str:
        seed = task.info["seed"]
        return self._known[seed] if seed in self._known else self.contents([seed])[0]

    def answer(self, task: Task) -> str | None:
        """The right answer, if the environment knows it."""
        return None if self.answers is None else self.answers([task.info["seed"]])[0]

    def _next(self, random: np.random.Generator, *, held_out: bool, seen: Collection[str]) -> Task:
        task = super()._next(random, held_out=held_out, seen=seen)
        level = None if self.levels is None else self.levels([task.info["seed"]])[0]
        info = task.info if level is None else {**task.info, "level": level}
        return replace(task, answer=self.answer(task), info=info)

    def draw(self, n: int, step: int) -> list[Task]:
        if self.pool is None:
            return super().draw(n, step)
        return self.of_pool(self.pool_tasks, n, step)

    @property
    def unanswered(self) -> Task | None:
        """An instance without an answer, of the first few that are held out."""
        return next((task for task in self.held_out(8) if task.answer is None), None)

    @cached_property
    def pool_tasks(self) -> list[Task]:
        """The training instances, if there is a pool."""
        found: dict[str, Task] = {}
        random = stream(POOL)
        while len(found) < (self.pool or 0):
            task = self._next(random, held_out=False, seen=found.keys())
            if task.id in found:
                raise too_few(self.name, len(found))
            found[task.id] = task
        return list(found.values())

    def state_dict(self) -> dict[str, Any]:
        return {} if self.label == self.name else {"label": self.label}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.label = state.get("label", self.name)
        vars(self).pop("pool_tasks", None)
        super().load_state_dict({k: v for k, v in state.items() if k != "label"})
