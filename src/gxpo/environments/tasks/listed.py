"""Tasks from a finite list, shuffled anew each epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.epochs import Epochs
from gxpo.environments.tasks.source import fraction_of, stream
from gxpo.parts.protocols import SAME_AS, Task

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


FEW = 5  # held-out tasks below which a warning is due


class ListedTasks(Epochs):
    """Tasks from a list; the order of each epoch depends only on the seed and the epoch.

    The source has no state: step s takes the tasks from position (s - 1) * `per_step` on (steps count from 1), so with
    `per_step` tasks a step every epoch has each once, and `draw(n, step)` is the beginning of `draw(m, step)` for
    n <= m.

    Tasks with one `info["same_as"]` are one task in several wordings: they follow each other, and are all for training
    or all held out. All such sets must have as many wordings, a divisor of `per_step`, so that no step cuts one.
    """

    name: str
    seed: int

    scorer_name: ClassVar[str] = "math"
    scorer: ClassVar[None] = None
    reward_default: ClassVar[str] = "math"

    def split(self, tasks: list[Task], held_out: list[Task] | None, fraction: float) -> None:
        """Split into training and held-out tasks: `held_out` as given, else `fraction` of the prompts, chosen by their
        hash; of a few prompts at least one on each side."""
        if not 0 < fraction < 1:
            raise TaskError(f"task {self.name!r}: held_out_fraction must be between 0 and 1, not {fraction}")
        self._check_wordings(tasks)
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
        self._sets = wordings(self._training)

    def _check_wordings(self, tasks: Sequence[Task]) -> None:
        """TaskError where a step would cut a set of wordings."""
        if not any(SAME_AS in task.info for task in tasks):
            return
        sizes = sorted({len(found) for found in wordings(tasks)})
        if len(sizes) > 1 or self.per_step % sizes[0]:
            raise TaskError(
                f"task {self.name!r}: sets of equal {SAME_AS!r} have {', '.join(map(str, sizes))} tasks; make all of "
                f"one size that divides tasks.per_step={self.per_step}, so that a step has whole sets"
            )

    @property
    def training(self) -> list[Task]:
        """All training tasks, in the order of the list."""
        return list(self._training)

    def keep_fitting(self, change: Callable[[Task], Task | None]) -> None:
        """Replace each task by what `change` makes of it; None drops it, with the other wordings of its set.

        Raises TaskError where that leaves no task on one side.
        """
        sides: list[list[Task]] = []
        for side, found in (("training", self._training), ("held-out", self._held_out)):
            changed = [[change(task) for task in together] for together in wordings(found)]
            fitting_tasks = [
                task for together in changed if None not in together for task in together if task is not None
            ]
            if not fitting_tasks:
                raise TaskError(f"{self.name}: the prompts of all {len(found)} {side} tasks are too long")
            sides.append(fitting_tasks)
        self._training, self._held_out = sides
        self._sets = wordings(self._training)

    @property
    def unanswered(self) -> Task | None:
        """The first task without an answer."""
        return next((t for t in (*self._training, *self._held_out) if t.answer is None), None)

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw `n` training tasks; a task is repeated only in the next epoch."""
        sets = self._sets
        wide = len(sets[0])
        size = len(sets) * wide

        def order(epoch: int) -> Any:
            shuffled = stream(self.seed, epoch).permutation(len(sets))
            return (shuffled[:, None] * wide + range(wide)).ravel() if wide > 1 else shuffled

        return [sets[place // wide][place % wide] for place in self.places(size, n, step, order)]

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


def wordings(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks by their `info["same_as"]`, in the order of the first of each; a task without one is alone."""
    sets: dict[tuple[bool, str], list[Task]] = {}
    for task in tasks:
        own = SAME_AS not in task.info
        sets.setdefault((own, task.id if own else str(task.info[SAME_AS])), []).append(task)
    return list(sets.values())


def _by_hash(tasks: list[Task], fraction: float) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks: prompts (of one task in several wordings, what they are the same as) whose hash is
    below `fraction` are held out, but at least the one with the lowest, and never all."""
    place = [fraction_of(str(t.info.get(SAME_AS, t.prompt))) for t in tasks]
    ordered = sorted(set(place))
    held = min(max(sum(x < fraction for x in ordered), 1), len(ordered) - 1)
    paired = list(zip(tasks, place, strict=True))
    return [t for t, x in paired if x >= ordered[held]], [t for t, x in paired if x < ordered[held]]
