"""A fixed pool of training tasks from a generator, so that tasks repeat across steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.epochs import Epochs
from gxpo.environments.tasks.source import TRAINING, stream

if TYPE_CHECKING:
    from gxpo.environments.tasks.source import GeneratedTasks
    from gxpo.parts.protocols import Task


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
