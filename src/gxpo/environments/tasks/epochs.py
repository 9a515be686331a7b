"""Epochs over a finite list of tasks, each task once an epoch; pools of generated tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.source import TRAINING, stream

if TYPE_CHECKING:
    from gxpo.environments.tasks.source import GeneratedTasks
    from gxpo.parts.protocols import Task

KINDS = (".jsonl", ".csv", ".parquet")  # of files of tasks
FIRST_STEP = 1  # number of a run's first step, which begins at the first place of the first epoch


class Epochs:
    """Base of sources that go through a finite list, epoch by epoch.

    per_step    tasks that a step draws: step s begins at position (s - first_step) * per_step
    first_step  step that begins the first epoch; a checkpoint without one is of a run that counted from 0, which lost
                the first `per_step` tasks of its first epoch, and continues that way
    """

    per_step: int
    first_step: int = FIRST_STEP

    def count_from(self, step: int) -> None:
        """Set the step at which the first epoch begins."""
        self.first_step = step

    def places(self, size: int, n: int, step: int, order: Callable[[int], Any]) -> list[int]:
        """Indices, in a list of `size`, of the `n` tasks that a step draws.

        order  epoch -> permutation of the indices, made once for each epoch that the step touches
        """
        begin = max(step - self.first_step, 0) * self.per_step
        orders: dict[int, Any] = {}
        out = []
        # positions count on from step to step, so an epoch may end in the middle of a step
        for position in range(begin, begin + n):
            epoch, place = divmod(position, size)
            if epoch not in orders:
                orders[epoch] = order(epoch)
            out.append(int(orders[epoch][place]))
        return out


def count_from(source: Any, step: int) -> None:
    """Set the step at which the epochs of a source begin; nothing for a source without epochs, as a user's may be."""
    if (count := getattr(source, "count_from", None)) is not None:
        count(step)


def goes_by_epochs(keys: Mapping[str, Any]) -> bool:
    """Return True if the keys of a run name a finite list of tasks: a file, a data set, rows of a function, a pool.

    >>> goes_by_epochs({"task": "q.jsonl"}), goes_by_epochs({"task": "arithmetic"})
    (True, False)
    >>> goes_by_epochs({"task": "frozenlake", "tasks.options": {"pool": 8}})
    True
    """
    # a run of several phases may change its task: one finite list is enough
    phases = keys.get("phases")
    phase_keys = [p for p in phases if isinstance(p, Mapping)] if isinstance(phases, (list, tuple)) else []
    return any(map(_is_finite, (keys, *phase_keys)))


def _is_finite(keys: Mapping[str, Any]) -> bool:
    # `tasks.options.pool` may be written as a dotted key, as a mapping under one, or nested twice
    name, task_options = str(keys.get("task", "")), keys.get("tasks")
    options = task_options.get("options") if isinstance(task_options, Mapping) else keys.get("tasks.options")
    pool = "tasks.options.pool" in keys or (isinstance(options, Mapping) and "pool" in options)
    is_code = name.rpartition(":")[0].endswith(".py")  # an environment, or rows: only its code tells
    return pool or is_code or name.endswith(KINDS) or name.startswith("dataset:")


# ---------------------------------------------------------------- pools of generated tasks
def check_pool(name: str, pool: Any) -> None:
    """Raise TaskError unless `pool` is a positive integer."""
    if type(pool) is not int or pool < 1:
        raise TaskError(f"task {name!r}: option 'pool' must be a number of instances, not {pool!r}")


def too_few(name: str, count: int) -> TaskError:
    """Error for a source with too few distinct training tasks for its pool."""
    return TaskError(f"task {name!r} has only {count} different training instances: lower tasks.options.pool")


class Pool(Epochs):
    """Base of sources with a pool: each epoch has every task of the pool once, in an order of the epoch's own."""

    seed: int

    def draw_from(self, pool: Sequence[Task], n: int, step: int) -> list[Task]:
        """Draw the `n` tasks of a step from a pool."""
        # runs that counted steps from 0 had no epochs: they continue with the step's own order
        if self.first_step == 0:
            passes = range(-(-n // len(pool)))
            order = [
                i
                for number in passes
                for i in stream(TRAINING, self.seed, step, number).permutation(len(pool)).tolist()
            ]
            return [pool[i] for i in order[:n]]
        order_of = lambda epoch: stream(TRAINING, self.seed, epoch).permutation(len(pool))  # noqa: E731
        return [pool[i] for i in self.places(len(pool), n, step, order_of)]


class PooledTasks(Pool):
    """A fixed pool of `pool` training tasks of a generator, the same for every seed of a run; all other attributes are
    those of `inner`. Tasks repeat across steps: they can be sampled by success rate, and be memorised, which
    `pool_tasks` against `held_out` shows.

    inner     a source with seed 0, whose tasks of step 0 are the pool
    seed      of the order in which they come
    per_step  tasks that the trainer draws a step
    """

    def __init__(self, inner: GeneratedTasks, pool: int, seed: int, per_step: int) -> None:
        check_pool(inner.name, pool)
        self._inner, self.seed, self.per_step = inner, seed, per_step
        # a generator repeats tasks where it has too few: those count once
        self.pool_tasks = list({task.id: task for task in inner.draw(pool, 0)}.values())
        if len(self.pool_tasks) < pool:
            raise too_few(inner.name, len(self.pool_tasks))

    def __getattr__(self, name: str) -> Any:
        # private names are never delegated: pickle and copy ask for them before `_inner` is set
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw the `n` training tasks of a step; a task is repeated only in the next epoch."""
        return self.draw_from(self.pool_tasks, n, step)

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks of the generator."""
        return self._inner.held_out(n)

    def observe(self, forest: Any) -> None:
        """Pass a step's rollouts on to the generator."""
        self._inner.observe(forest)

    def state_dict(self) -> dict[str, Any]:
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(state)
