"""Epochs: positions of a run's steps in a finite list of tasks, so that each epoch has every task exactly once."""

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


# ---------------------------------------------------------------- pools of generated tasks
def check_pool(name: str, pool: Any) -> None:
    """TaskError for a size of a pool that is none."""
    if type(pool) is not int or pool < 1:
        raise TaskError(f"task {name!r}: option 'pool' must be a number of instances, not {pool!r}")


def too_few(name: str, found: int) -> TaskError:
    """That a source has only so many training tasks."""
    return TaskError(f"task {name!r} has only {found} different training instances: lower tasks.options.pool")


class Pool(Epochs):
    """Base of sources with a pool: each epoch has every task of it once, in an order of its own."""

    seed: int

    def of_pool(self, pool: Sequence[Task], n: int, step: int) -> list[Task]:
        """`n` tasks of a step; of a run that counted steps from 0, which had no epochs, in the step's own order."""
        if self.first_step == 0:
            laps = range(-(-n // len(pool)))
            order = [i for lap in laps for i in stream(TRAINING, self.seed, step, lap).permutation(len(pool)).tolist()]
            return [pool[i] for i in order[:n]]
        shuffled = lambda epoch: stream(TRAINING, self.seed, epoch).permutation(len(pool))  # noqa: E731
        return [pool[i] for i in self.places(len(pool), n, step, shuffled)]


class PooledTasks(Pool):
    """A generated source of which `pool` training tasks are drawn, the same for every seed of a run; for all else
    `inner` answers. Tasks are then met again: they can be sampled by success rate, and be memorised, which `pool_tasks`
    against `held_out` shows.

    inner  a source with seed 0, whose tasks of step 0 the pool is
    seed   of the order in which they come
    per_step  tasks that the trainer draws a step
    """

    def __init__(self, inner: GeneratedTasks, pool: int, seed: int, per_step: int) -> None:
        check_pool(inner.name, pool)
        self._inner, self.seed, self.per_step = inner, seed, per_step
        self.pool_tasks = list({task.id: task for task in inner.draw(pool, 0)}.values())
        if len(self.pool_tasks) < pool:
            raise too_few(inner.name, len(self.pool_tasks))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def draw(self, n: int, step: int) -> list[Task]:
        """`n` training tasks of a step; a task is repeated only in the next epoch."""
        return self.of_pool(self.pool_tasks, n, step)

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks, those of the source."""
        return self._inner.held_out(n)

    def observe(self, forest: Any) -> None:
        """Shows a step's rollouts to the source."""
        self._inner.observe(forest)

    def state_dict(self) -> dict[str, Any]:
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._inner.load_state_dict(state)
