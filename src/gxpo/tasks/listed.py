"""Tasks from a finite list, shuffled anew each epoch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from gxpo.errors import TaskError
from gxpo.protocols import Task
from gxpo.tasks.source import fraction_of, stream

if TYPE_CHECKING:
    from gxpo.forest import Forest


FEW = 5  # held-out tasks below which a warning is due


class ListedTasks:
    """Tasks from a list; the order of each epoch depends only on the seed and the epoch.

    The source has no state: step s takes the tasks from position s * `per_step` on, so with `per_step` tasks a step an
    epoch sees each once, and `draw(n, step)` is the beginning of `draw(m, step)` for n <= m.
    """

    name: str
    seed: int
    per_step: int

    scorer_name: ClassVar[str] = "math"
    scorer: ClassVar[None] = None
    reward_default: ClassVar[str] = "math"

    def split(self, tasks: list[Task], held_out: list[Task] | None, fraction: float) -> None:
        """Split into training and held-out tasks: `held_out` as given, else `fraction` of the prompts, chosen by their
        hash; of a few prompts at least one on each side."""
        if not 0 < fraction < 1:
            raise TaskError(f"task {self.name!r}: held_out_fraction must be between 0 and 1, not {fraction}")
        if held_out is None:
            self._training, self._held_out = _by_hash(tasks, fraction)
            if self._training and 0 < len(self._held_out) < FEW:
                warnings.warn(
                    f"{self.name}: {len(self._held_out)} of {len(tasks)} tasks held out, so held-out accuracy says "
                    "little: raise tasks.options.held_out_fraction or give held-out tasks "
                    "(tasks.options.held_out=FILE, in Python eval_task=...)",
                    stacklevel=2,
                )
        else:
            self._training, self._held_out = tasks, held_out
            prompts = {str(t.prompt) for t in held_out}
            for task in tasks:
                if str(task.prompt) in prompts:
                    raise TaskError(f"{self.name}: the prompt of task {task.id!r} is also in the held-out tasks")
        for side, found in (("training", self._training), ("held-out", self._held_out)):
            if not found:
                raise TaskError(
                    f"{self.name}: held_out_fraction {fraction} of {len(tasks)} tasks leaves no {side} task; "
                    "give held-out tasks (tasks.options.held_out=FILE, in Python eval_task=...)"
                )

    @property
    def training(self) -> list[Task]:
        """All training tasks, in the order of the list."""
        return list(self._training)

    @property
    def unanswered(self) -> Task | None:
        """The first task without an answer."""
        return next((t for t in (*self._training, *self._held_out) if t.answer is None), None)

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw `n` training tasks; a task is repeated only in the next epoch."""
        size = len(self._training)
        orders: dict[int, Any] = {}
        tasks = []
        for position in range(step * self.per_step, step * self.per_step + n):
            epoch, place = divmod(position, size)
            if epoch not in orders:
                orders[epoch] = stream(self.seed, epoch).permutation(size)
            tasks.append(self._training[int(orders[epoch][place])])
        return tasks

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks, in their order."""
        return self._held_out[:n]

    def observe(self, forest: Forest) -> None:
        """Does nothing: results don't change the order."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise TaskError(f"task {self.name!r} keeps no state, but the checkpoint holds {sorted(state)}")


def _by_hash(tasks: list[Task], fraction: float) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks: prompts whose hash is below `fraction` are held out, but at least the one with the
    lowest, and never all."""
    place = [fraction_of(str(t.prompt)) for t in tasks]
    ordered = sorted(set(place))
    held = min(max(sum(x < fraction for x in ordered), 1), len(ordered) - 1)
    paired = list(zip(tasks, place, strict=True))
    return [t for t, x in paired if x >= ordered[held]], [t for t, x in paired if x < ordered[held]]
