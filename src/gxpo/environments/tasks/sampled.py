"""Task source under a task sampler: measures success rates and draws tasks by them."""

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
    """Named choices of a sampler: single tasks, or levels of them."""

    names: Sequence[str]

    @abstractmethod
    def name_of(self, task: str) -> str | None:
        """Name of the arm that a task's id belongs to; None if it belongs to none."""

    @abstractmethod
    def draw(self, chances: np.ndarray, draw_counts: np.ndarray, n: int, step: int, epochs: bool) -> list[Task]:
        """Draw `n` tasks by chances [N]; `epochs`: first those of the lowest `draw_counts` [N], their earlier draws."""


class EachTask(Arms):
    """Each task of a list is an arm, drawn without replacement within a step until all with a chance are drawn."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._tasks, self._seed = {t.id: t for t in tasks}, seed
        self.names = list(self._tasks)

    def name_of(self, task: str) -> str | None:
        return task if task in self._tasks else None

    def draw(self, chances: np.ndarray, draw_counts: np.ndarray, n: int, step: int, epochs: bool) -> list[Task]:
        waiting_times = stream(DRAWN, self._seed, step).standard_exponential(len(chances))
        candidates = np.flatnonzero(chances)
        # sorted by wait / chance, tasks are as if drawn one after the other in proportion to the chances that remain
        keys = waiting_times[candidates] / chances[candidates]
        order = candidates[np.lexsort((keys, draw_counts[candidates] if epochs else np.zeros_like(candidates)))]
        return [self._tasks[self.names[int(order[i % len(order)])]] for i in range(n)]


class _Levels(Arms):
    """Levels are arms, drawn with replacement; a level gives its next tasks."""

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self.names, self._seed = list(names), seed

    @abstractmethod
    def of_level(self, level: int, n: int, before: int, step: int) -> list[Task]:
        """Take `n` tasks of a level, of which `before` were drawn in earlier steps."""

    def draw(self, chances: np.ndarray, draw_counts: np.ndarray, n: int, step: int, epochs: bool) -> list[Task]:
        # inverse CDF; rounding may leave a draw beyond the last level with a chance, which then gets it
        ends = np.cumsum(chances)
        places = np.searchsorted(ends, stream(DRAWN, self._seed, step).random(n) * ends[-1], side="right")
        levels = np.minimum(places, np.flatnonzero(chances)[-1]).tolist()
        level_counts = Counter(levels)
        tasks = {
            level: iter(self.of_level(level, m, int(draw_counts[level]), step)) for level, m in level_counts.items()
        }
        return [next(tasks[level]) for level in levels]


class ColumnLevels(_Levels):
    """Levels named by a column of a list; a level's tasks come in epochs, each in another order."""

    def __init__(self, tasks: Sequence[Task], column: str, levels: Sequence[Any], label: str, seed: int) -> None:
        tasks_by_level: dict[Any, list[Task]] = {}
        for task in tasks:
            if not has_cell(task.info, column):
                columns = ", ".join(task.info) or "none"
                raise TaskError(f"{label}: {task.id!r} has no column {column!r} (tasks.sampler.key), but {columns}")
            tasks_by_level.setdefault(_hashable(cell(task.info, column)), []).append(task)
        # JSON gives numbers and texts in one column: numbers first, each kind in its order
        level_values = list(map(_hashable, levels)) or sorted(tasks_by_level, key=lambda x: (isinstance(x, str), x))
        for level in level_values:
            if level not in tasks_by_level:
                raise TaskError(f"{label}: no task has {column}={level!r} (tasks.sampler.levels)")
        super().__init__([str(level) for level in level_values], seed)
        self._tasks_by_level = [tasks_by_level[level] for level in level_values]
        self._names = {task.id: str(level) for level in level_values for task in tasks_by_level[level]}

    def name_of(self, task: str) -> str | None:
        return self._names.get(task)

    def of_level(self, level: int, n: int, before: int, step: int) -> list[Task]:
        tasks, drawn_tasks = self._tasks_by_level[level], []
        for position in range(before, before + n):
            epoch, place = divmod(position, len(tasks))
            drawn_tasks.append(tasks[int(stream(LEVEL, self._seed, level, epoch).permutation(len(tasks))[place])])
        return drawn_tasks


class OptionLevels(_Levels):
    """Levels of a generator: one source for each value of an option. Ids of tasks begin with the level's name."""

    def __init__(self, option: str, sources: Mapping[Any, TaskSource], seed: int) -> None:
        super().__init__([f"{option}={level}" for level in sources], seed)
        self.sources = list(sources.values())
        self._level_names = set(self.names)

    def name_of(self, task: str) -> str | None:
        name = task.partition("/")[0]
        return name if name in self._level_names else None

    def of_level(self, level: int, n: int, before: int, step: int) -> list[Task]:
        return [self._with_level(level, t) for t in self.sources[level].draw(n, step)]

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks, from the levels in turn."""
        per_level = -(-n // len(self.sources))
        tasks_by_level = [
            [self._with_level(i, t) for t in source.held_out(per_level)] for i, source in enumerate(self.sources)
        ]
        return [tasks[i] for i in range(per_level) for tasks in tasks_by_level if i < len(tasks)][:n]

    def _with_level(self, level: int, task: Task) -> Task:
        return replace(task, id=f"{self.names[level]}/{task.id}")


def _hashable(level: Any) -> Any:
    return level if isinstance(level, (str, int, float, bool)) else str(level)


class SampledTasks:
    """A source whose training tasks are drawn by `sampler`; all other attributes are those of `inner`.

    The rates change in `observe`, after a step's update; within a step `draw(n, step)` is the beginning of
    `draw(m, step)` for n <= m. Rollouts passed to `see` count even where a filter has removed them from the forest
    that is observed. A task of weight 0 is never drawn: where a step draws more tasks than have a weight, these repeat
    (with one warning), and where none has a weight the source is `exhausted`.
    """

    def __init__(self, inner: TaskSource, sampler: Any, arms: Arms) -> None:
        self._inner, self.sampler, self.arms = inner, sampler, arms
        self.rates = SuccessRates(sampler.discount, sampler.prior, sampler.window)
        self._draw_counts: Counter[str] = Counter()
        self._pending_draw: tuple[int, list[str]] = (
            -1,
            [],
        )  # (step, names) of the newest draw, not yet in `_draw_counts`
        self._unobserved_forests: list[Forest] = []
        self._mixed_share = math.nan
        self._candidate_count: int | None = None  # names with a chance; None: not counted since a rate changed
        self._has_warned = False
        self._lock = threading.RLock()  # an asynchronous run draws beside the steps that observe

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw the `n` training tasks of a step."""
        with self._lock:
            # a step that draws again, for more tasks, draws by the same counts as before
            if step != self._pending_draw[0]:
                self._draw_counts.update(self._pending_draw[1])
            draw_counts = np.array([self._draw_counts[name] for name in self.arms.names])
            chances = self._chances(self._draw_counts).numpy()
            if not (candidate_count := int(np.count_nonzero(chances))):
                raise TaskError(self._exhaustion)
            self._warn_of_few(candidate_count, n)
            tasks = self.arms.draw(chances, draw_counts, n, step, self.sampler.epochs)
            self._candidate_count = None
            self._pending_draw = (step, [name for t in tasks if (name := self.arms.name_of(t.id)) is not None])
            return tasks

    @property
    def exhausted(self) -> str | None:
        """Reason why a step after the first has nothing to draw; None while some task has a weight."""
        with self._lock:
            if self._candidate_count is None:
                self._candidate_count = int(np.count_nonzero(self.chances().numpy()))
            return self._exhaustion if not self._candidate_count and self._pending_draw[0] >= 0 else None

    @property
    def _exhaustion(self) -> str:
        arms_text = "levels" if isinstance(self.arms, _Levels) else "tasks"
        return (
            f"none of {len(self.arms.names)} {arms_text} is left: tasks.sampler={type(self.sampler).__name__} "
            "gives all of them the weight 0; tasks.sampler.uniform_share above 0 goes on drawing them"
        )

    def _warn_of_few(self, candidate_count: int, n: int) -> None:
        """Warn once if fewer tasks have a chance than a step draws."""
        task_count = len(self.arms.names)
        if self._has_warned or candidate_count >= min(n, task_count) or not isinstance(self.arms, EachTask):
            return
        self._has_warned = True
        sampler = type(self.sampler).__name__
        warnings.warn(
            f"tasks.sampler={sampler}: {candidate_count} of {task_count} tasks are left, and a step draws {n}: they "
            "come several times in a step (lower tasks.per_step, or set tasks.sampler.uniform_share above 0)",
            stacklevel=3,
        )

    def chances(self) -> torch.Tensor:
        """Chances of `arms.names` in the next step's draw, [N]."""
        return self._chances(self._draw_counts + Counter(self._pending_draw[1]))

    def _chances(self, draw_counts: Mapping[str, int]) -> torch.Tensor:
        """Chances of `arms.names`, [N], given how often each was drawn."""
        own_columns: dict[str, Callable[[], torch.Tensor]] = {
            "drawn": lambda: torch.tensor([float(draw_counts[name]) for name in self.arms.names]),
            "level": lambda: torch.arange(len(self.arms.names), dtype=torch.float64),
        }
        columns = {
            c: own_columns[c]() if c in own_columns else self.rates.column(c, self.arms.names)
            for c in self.sampler.reads
        }
        return self.sampler.weights(columns)

    def count_from(self, step: int) -> None:
        """Set the step at which the epochs of the source begin."""
        count_from(self._inner, step)

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks."""
        return self.arms.held_out(n) if isinstance(self.arms, OptionLevels) else self._inner.held_out(n)

    # ------------------------------------------------------------ memory
    def see(self, forest: Forest) -> None:
        """Note scored rollouts of the step that is being sampled, for `observe`."""
        self._unobserved_forests.append(forest)

    def observe(self, forest: Forest) -> None:
        """Count the verdicts of a step: of all rollouts passed to `see`, or of the forest if there were none."""
        forests, self._unobserved_forests = self._unobserved_forests or [forest], []
        with self._lock:
            visits_by_name: dict[str, dict[str, Visit]] = {}
            for part in forests:
                part.need_verdicts("tasks.sampler")
                # by name and task: variances are of the answers to one task, also where the name is a level
                for task, visit in visits_of(part).items():
                    if (name := self.arms.name_of(task)) is not None:
                        total = visits_by_name.setdefault(name, {}).setdefault(task, Visit())
                        total.verdicts += visit.verdicts
                        total.outcomes += visit.outcomes
                        total.logprobs += visit.logprobs
            for name, visits in visits_by_name.items():
                self.rates.add(name, list(visits.values()))
            are_mixed = [visit.mixed for visits in visits_by_name.values() for visit in visits.values()]
            self._mixed_share = sum(are_mixed) / len(are_mixed) if are_mixed else math.nan
            self._candidate_count = None
        self._inner.observe(forest)

    def figures(self) -> dict[str, float | None]:
        """Figures for metrics.jsonl: tasks with known rates, and the spread of the next draws."""
        # tasks_effective is exp(entropy): the number of equally likely tasks with the same entropy
        chances = self.chances()
        self._candidate_count = int(chances.count_nonzero())
        known_count = sum(name in self.rates.names() for name in self.arms.names)
        entropy = -float(torch.special.xlogy(chances, chances).sum())
        return {
            "tasks_mixed": None if math.isnan(self._mixed_share) else self._mixed_share,
            "tasks_known": known_count,
            "tasks_coverage": known_count / len(self.arms.names),
            "tasks_effective": math.exp(entropy) if self._candidate_count else 0.0,
            "tasks_left": self._candidate_count,
        }

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return {
                "source": self._inner.state_dict(),
                "rates": self.rates.state_dict(),
                "drawn": dict(self._draw_counts),
                "pending": [self._pending_draw[0], list(self._pending_draw[1])],
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != _STATE:
            raise CheckpointError("the checkpoint has no success rates of tasks: it was made without tasks.sampler")
        with self._lock:
            self._inner.load_state_dict(state["source"])
            self.rates.load_state_dict(state["rates"])
            self._candidate_count = None
            self._draw_counts = Counter({name: int(n) for name, n in state["drawn"].items()})
            step, names = state["pending"]
            self._pending_draw = (int(step), [str(x) for x in names])


def sample_by_rates(
    source: TaskSource, sampler: Any, seed: int, task: str, level_source: Callable[[Any], TaskSource] | None
) -> SampledTasks:
    """Put a source under a sampler, by task or by level.

    level_source  makes a source for a value of the option `sampler.key`; None if the source has no options
    Raises TaskError where no success rate can be measured, since no task and no level is met twice.
    """
    label = f"task {task!r}"
    # a user's source may have a list of its tasks under either name, or none
    pool_tasks = getattr(source, "training", None) or getattr(source, "pool_tasks", None)
    by, levels = sampler.key, list(sampler.levels)
    if pool_tasks:
        arms = EachTask(pool_tasks, seed) if by == "id" else ColumnLevels(pool_tasks, by, levels, label, seed)
        return SampledTasks(source, sampler, arms)
    # a generator without a pool: only levels of an option come again
    if by == "id" or not levels:
        way = (
            "set tasks.options.pool to train on that many, or key the sampler by an option of it: "
            "tasks.sampler.key=digits and tasks.sampler.levels=[1,2,3]"
            if level_source is not None
            else "set tasks.options.pool to train on that many instances"
        )
        raise TaskError(f"{label} generates tasks and repeats none, so none has a success rate: {way}")
    if level_source is None:
        raise TaskError(
            f"{label} has no option to key a sampler by: set tasks.options.pool to draw from that many instances, by "
            "id or by a level that their world says (tasks.sampler.key=level)"
        )
    return SampledTasks(source, sampler, OptionLevels(by, {level: level_source(level) for level in levels}, seed))
