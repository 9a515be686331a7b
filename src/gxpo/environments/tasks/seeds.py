"""Environment instances as tasks: one task per seed, split into training and held-out by content."""

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
    """Tasks `LABEL/DIGEST` of an environment, with `info["seed"]` and, if the environment gives them, the right answer
    and `info["level"]`, its difficulty.

    contents  contents of the instances of some seeds, as texts: equal texts are one instance, and one task
    pool      train on that many instances only, the same for every seed of a run (they will be memorised, which
              `pool_tasks` against `held_out` shows); None: a new one for every draw
    answers   right answers in the instances of some seeds, as texts; None if the environment does not say
    levels    difficulty of the instances of some seeds, whole numbers; None if the environment does not say
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
    _content_by_seed: dict[int, str] = field(default_factory=dict, repr=False)

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
        # `content` is called right after for the split: the cache saves the environment a second call
        if len(self._content_by_seed) > 4096:
            self._content_by_seed.clear()
        self._content_by_seed[seed] = content
        return Task(f"{self.label}/{digest}", "", info={"seed": seed})

    def content(self, task: Task) -> str:
        seed = task.info["seed"]
        return self._content_by_seed[seed] if seed in self._content_by_seed else self.contents([seed])[0]

    def answer(self, task: Task) -> str | None:
        """Right answer of a task; None if the environment does not know it."""
        return None if self.answers is None else self.answers([task.info["seed"]])[0]

    def _next(self, random: np.random.Generator, *, held_out: bool, used_ids: Collection[str]) -> Task:
        task = super()._next(random, held_out=held_out, used_ids=used_ids)
        # answer and level of the chosen instance alone: proposals on the wrong side never ask for them
        level = None if self.levels is None else self.levels([task.info["seed"]])[0]
        info = task.info if level is None else {**task.info, "level": level}
        return replace(task, answer=self.answer(task), info=info)

    def draw(self, n: int, step: int) -> list[Task]:
        if self.pool is None:
            return super().draw(n, step)
        return self.draw_from(self.pool_tasks, n, step)

    @property
    def unanswered(self) -> Task | None:
        """A held-out instance without an answer, among the first eight; None if all have one."""
        return next((task for task in self.held_out(8) if task.answer is None), None)

    @cached_property
    def pool_tasks(self) -> list[Task]:
        """Training instances of the pool, the same for every seed; empty without a pool."""
        tasks_by_id: dict[str, Task] = {}
        random = stream(POOL)
        while len(tasks_by_id) < (self.pool or 0):
            task = self._next(random, held_out=False, used_ids=tasks_by_id.keys())
            if task.id in tasks_by_id:
                raise too_few(self.name, len(tasks_by_id))
            tasks_by_id[task.id] = task
        return list(tasks_by_id.values())

    def state_dict(self) -> dict[str, Any]:
        return {} if self.label == self.name else {"label": self.label}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # a checkpoint without a label is of a run whose ids began with the name as typed: they go on so
        self.label = state.get("label", self.name)
        vars(self).pop("pool_tasks", None)
        super().load_state_dict({k: v for k, v in state.items() if k != "label"})
