"""A task source under a task sampler: draws by measured success rates, and measures them."""

from __future__ import annotations

import math
import threading
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gxpo.base.cells import cell, has_cell
from gxpo.base.errors import CheckpointError, TaskError
from gxpo.environments.tasks.epochs import count_from
from gxpo.environments.tasks.source import stream
from gxpo.environments.tasks.success_rates import SuccessRates, Visit, visits_of

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task, TaskSource

DRAWN, LEVEL = 5, 6  # first words of the streams' keys; the others are in `tasks.source` and `tasks.seeds`
_STATE = {"source", "rates", "drawn", "pending"}


class Arms(ABC):
    """What a sampler chooses among, by name: tasks, or levels of them."""

    names: Sequence[str]

    @abstractmethod
    def name_of(self, task: str) -> str | None:
        """The name that a task's id belongs to; None: to none of them."""

    @abstractmethod
    def draw(self, chances: np.ndarray, drawn: np.ndarray, n: int, step: int, epochs: bool) -> list[Task]:
        """`n` tasks by chances [N]; `drawn` [N]: how often each name was drawn before."""


class EachTask(Arms):
    """Every task of a list by itself: those of a step differ until all with a chance are drawn, then come again."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._tasks, self._seed = {t.id: t for t in tasks}, seed
        self.names = list(self._tasks)

    def name_of(self, task: str) -> str | None:
        return task if task in self._tasks else None

    def draw(self, chances: np.ndarray, drawn: np.ndarray, n: int, step: int, epochs: bool) -> list[Task]:
        waits = stream(DRAWN, self._seed, step).standard_exponential(len(chances))
        able = np.flatnonzero(chances)
        # sorted by wait / chance, tasks are as if drawn one after the other in proportion to what is left
        keys = waits[able] / chances[able]
        order = able[np.lexsort((keys, drawn[able] if epochs else np.zeros_like(able)))]
        return [self._tasks[self.names[int(order[i % len(order)])]] for i in range(n)]


class _Levels(Arms):
    """Levels, drawn with repetition; each gives its next tasks."""

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self.names, self._seed = list(names), seed

    @abstractmethod
    def of_level(self, level: int, n: int, before: int, step: int) -> list[Task]:
        """`n` tasks of a level, of which `before` were drawn in the steps before."""

    def draw(self, chances: np.ndarray, drawn: np.ndarray, n: int, step: int, epochs: bool) -> list[Task]:
        ends = np.cumsum(chances)
        places = np.searchsorted(ends, stream(DRAWN, self._seed, step).random(n) * ends[-1], side="right")
        levels = np.minimum(places, np.flatnonzero(chances)[-1]).tolist()
        wanted = Counter(levels)
        tasks = {level: iter(self.of_level(level, m, int(drawn[level]), step)) for level, m in wanted.items()}
        return [next(tasks[level]) for level in levels]


class ColumnLevels(_Levels):
    """Levels that a column of a list names; a level's tasks come in epochs, each time in another order."""

    def __init__(self, tasks: Sequence[Task], column: str, levels: Sequence[Any], label: str, seed: int) -> None:
        found: dict[Any, list[Task]] = {}
        for task in tasks:
            if not has_cell(task.info, column):
                there = ", ".join(task.info) or "none"
                raise TaskError(f"{label}: {task.id!r} has no column {column!r} (tasks.sampler.by), but {there}")
            found.setdefault(_hashable(cell(task.info, column)), []).append(task)
        chosen = list(map(_hashable, levels)) or sorted(found, key=lambda x: (isinstance(x, str), x))
        for level in chosen:
            if level not in found:
                raise TaskError(f"{label}: no task has {column}={level!r} (tasks.sampler.levels)")
        super().__init__([str(level) for level in chosen], seed)
        self._of = [found[level] for level in chosen]
        self._names = {task.id: str(level) for level in chosen for task in found[level]}

    def name_of(self, task: str) -> str | None:
        return self._names.get(task)

    def of_level(self, level: int, n: int, before: int, step: int) -> list[Task]:
        tasks, out = self._of[level], []
        for position in range(before, before + n):
            epoch, place = divmod(position, len(tasks))
            out.append(tasks[int(stream(LEVEL, self._seed, level, epoch).permutation(len(tasks))[place])])
        return out


class OptionLevels(_Levels):
    """Levels of a source that generates tasks: one source for each value of an option. Ids begin with the level."""

    def __init__(self, option: str, sources: Mapping[Any, TaskSource], seed: int) -> None:
        super().__init__([f"{option}={level}" for level in sources], seed)
        self.sources = list(sources.values())
        self._known = set(self.names)

    def name_of(self, task: str) -> str | None:
        name = task.partition("/")[0]
        return name if name in self._known else None

    def of_level(self, level: int, n: int, before: int, step: int) -> list[Task]:
        return [self._named(level, t) for t in self.sources[level].draw(n, step)]

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks, from all levels in turn."""
        each = -(-n // len(self.sources))
        found = [[self._named(i, t) for t in source.held_out(each)] for i, source in enumerate(self.sources)]
        return [tasks[i] for i in range(each) for tasks in found if i < len(tasks)][:n]

    def _named(self, level: int, task: Task) -> Task:
        return replace(task, id=f"{self.names[level]}/{task.id}")


def _hashable(level: Any) -> Any:
    return level if isinstance(level, (str, int, float, bool)) else str(level)


class SampledTasks:
    """A source whose training tasks are drawn by `sampler`; whatever else it is asked for, `inner` answers.

    The rates move in `observe`, after a step's update; within a step `draw(n, step)` is the beginning of
    `draw(m, step)` for n <= m. With `see`, what a step sampled counts even where a filter has left it out of the
    forest that is observed. A task without a chance is never drawn: where a step draws more than are left, those come
    several times, which is warned of once, and where none is left the source is `exhausted`.
    """

    def __init__(self, inner: TaskSource, sampler: Any, arms: Arms) -> None:
        self._inner, self.sampler, self.arms = inner, sampler, arms
        self.rates = SuccessRates(sampler.discount, sampler.prior, sampler.window)
        self._drawn: Counter[str] = Counter()
        self._pending: tuple[int, list[str]] = (-1, [])  # (step, names) of the newest draw, not yet in `_drawn`
        self._seen: list[Forest] = []
        self._share = math.nan
        self._left: int | None = None  # names with a chance; None: not counted since a rate has moved
        self._warned = False
        self._lock = threading.RLock()  # an asynchronous run draws beside the steps that observe

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def draw(self, n: int, step: int) -> list[Task]:
        """`n` training tasks of a step."""
        with self._lock:
            if step != self._pending[0]:
                self._drawn.update(self._pending[1])
            drawn = np.array([self._drawn[name] for name in self.arms.names])
            chances = self._chances(self._drawn).numpy()
            if not (left := int(np.count_nonzero(chances))):
                raise TaskError(self._exhaustion)
            self._warn_of_few(left, n)
            tasks = self.arms.draw(chances, drawn, n, step, self.sampler.epochs)
            self._left = None
            self._pending = (step, [name for t in tasks if (name := self.arms.name_of(t.id)) is not None])
            return tasks

    @property
    def exhausted(self) -> str | None:
        """Why a step after the first has nothing to draw; None where something is left."""
        with self._lock:
            if self._left is None:
                self._left = int(np.count_nonzero(self.chances().numpy()))
            return self._exhaustion if not self._left and self._pending[0] >= 0 else None

    @property
    def _exhaustion(self) -> str:
        what = "levels" if isinstance(self.arms, _Levels) else "tasks"
        return (
            f"none of {len(self.arms.names)} {what} is left: tasks.sampler={type(self.sampler).__name__} gives all of "
            "them the weight 0; tasks.sampler.uniform above 0 goes on drawing them"
        )

    def _warn_of_few(self, left: int, n: int) -> None:
        """Say once that the tasks that are left are fewer than a step draws."""
        task_count = len(self.arms.names)
        if self._warned or left >= min(n, task_count) or not isinstance(self.arms, EachTask):
            return
        self._warned = True
        warnings.warn(
            f"tasks.sampler={type(self.sampler).__name__}: {left} of {task_count} tasks are left, and a step draws "
            f"{n}: they come several times in a step (lower tasks.per_step, or set tasks.sampler.uniform above 0)",
            stacklevel=3,
        )

    def chances(self) -> torch.Tensor:
        """[N] the chances of `arms.names` in the next step's draw."""
        return self._chances(self._drawn + Counter(self._pending[1]))

    def _chances(self, drawn: Mapping[str, int]) -> torch.Tensor:
        """[N] the chances of `arms.names`, each of which was drawn so often."""
        made: dict[str, Callable[[], torch.Tensor]] = {
            "drawn": lambda: torch.tensor([float(drawn[name]) for name in self.arms.names]),
            "level": lambda: torch.arange(len(self.arms.names), dtype=torch.float64),
        }
        columns = {c: made[c]() if c in made else self.rates.column(c, self.arms.names) for c in self.sampler.reads}
        return self.sampler.weights(columns)

    def count_from(self, step: int) -> None:
        """Let the epochs of the source begin at this step."""
        count_from(self._inner, step)

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks."""
        return self.arms.held_out(n) if isinstance(self.arms, OptionLevels) else self._inner.held_out(n)

    # ------------------------------------------------------------ memory
    def see(self, forest: Forest) -> None:
        """Scored rollouts of the step that is being sampled."""
        self._seen.append(forest)

    def observe(self, forest: Forest) -> None:
        """Count the verdicts of a step: of all that was seen, or of the forest where nothing was."""
        seen, self._seen = self._seen or [forest], []
        with self._lock:
            found: dict[str, dict[str, Visit]] = {}
            for part in seen:
                part.need_verdicts("tasks.sampler")
                for task, visit in visits_of(part).items():
                    if (name := self.arms.name_of(task)) is not None:
                        held = found.setdefault(name, {}).setdefault(task, Visit())
                        held.verdicts += visit.verdicts
                        held.outcomes += visit.outcomes
                        held.logprobs += visit.logprobs
            for name, visits in found.items():
                self.rates.add(name, list(visits.values()))
            every = [visit.mixed for visits in found.values() for visit in visits.values()]
            self._share = sum(every) / len(every) if every else math.nan
            self._left = None
        self._inner.observe(forest)

    def figures(self) -> dict[str, float | None]:
        """For metrics.jsonl: what is known after the step, and how the next draws are spread."""
        chances = self.chances()
        self._left = int(chances.count_nonzero())
        known = sum(name in self.rates.known() for name in self.arms.names)
        entropy = -float(torch.special.xlogy(chances, chances).sum())
        return {
            "tasks_mixed": None if math.isnan(self._share) else self._share,
            "tasks_known": known,
            "tasks_coverage": known / len(self.arms.names),
            "tasks_effective": math.exp(entropy) if self._left else 0.0,
            "tasks_left": self._left,
        }

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return {
                "source": self._inner.state_dict(),
                "rates": self.rates.state_dict(),
                "drawn": dict(self._drawn),
                "pending": [self._pending[0], list(self._pending[1])],
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != _STATE:
            raise CheckpointError("the checkpoint has no success rates of tasks: it was made without tasks.sampler")
        with self._lock:
            self._inner.load_state_dict(state["source"])
            self.rates.load_state_dict(state["rates"])
            self._left = None
            self._drawn = Counter({name: int(n) for name, n in state["drawn"].items()})
            step, names = state["pending"]
            self._pending = (int(step), [str(x) for x in names])


def sampled(
    source: TaskSource, sampler: Any, seed: int, task: str, level_source: Callable[[Any], TaskSource] | None
) -> SampledTasks:
    """The source under a sampler. `level_source` makes one for a value of the option `sampler.by`; None: it can't.

    TaskError where no pass rate can be measured, since no task and no level is met twice.
    """
    label = f"task {task!r}"
    listed = getattr(source, "training", None) or getattr(source, "pool_tasks", None)
    by, levels = sampler.by, list(sampler.levels)
    if listed:
        arms = EachTask(listed, seed) if by == "id" else ColumnLevels(listed, by, levels, label, seed)
        return SampledTasks(source, sampler, arms)
    if by == "id" or not levels:
        way = (
            "set tasks.options.pool to train on that many, or key the sampler by an option of it: "
            "tasks.sampler.by=digits and tasks.sampler.levels=[1,2,3]"
            if level_source is not None
            else "set tasks.options.pool to train on that many instances"
        )
        raise TaskError(f"{label} generates tasks and repeats none, so none has a success rate: {way}")
    if level_source is None:
        raise TaskError(
            f"{label} has no option to key a sampler by: set tasks.options.pool to draw from that many instances, by "
            "id or by a level that their world says (tasks.sampler.by=level)"
        )
    return SampledTasks(source, sampler, OptionLevels(by, {level: level_source(level) for level in levels}, seed))
