"""Base of sources with a finite list of tasks, shuffled anew each epoch."""

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


FEW = 5  # held-out tasks below which a warning is shown


class ListedTasks(Epochs):
    """Tasks from a list, in an order of each epoch that depends only on the seed and the epoch.

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
        """Split into training and held-out tasks: `held_out` if given, else `fraction` of the prompts, chosen by their
        hash; of a few prompts at least one on each side.

        Raises TaskError where one side is empty, and where a prompt is on both.
        """
        if not 0 < fraction < 1:
            raise TaskError(f"task {self.name!r}: held_out_fraction must be between 0 and 1, not {fraction}")
        self._check_wordings(tasks)
        if held_out is None:
            # by the prompt's hash: rows that are added or reordered move no prompt to the other side
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
            # ids may differ where the prompt is the same: accuracy on it would measure memory
            prompts = {str(t.prompt) for t in held_out}
            for task in tasks:
                if str(task.prompt) in prompts:
                    raise TaskError(f"{self.name}: the prompt of task {task.id!r} is also in the held-out tasks")
        for side, side_tasks in (("training", self._training), ("held-out", self._held_out)):
            if not side_tasks:
                raise TaskError(
                    f"{self.name}: held_out_fraction {fraction} of {len(tasks)} tasks leaves no {side} task; "
                    "give held-out tasks (tasks.options.held_out=FILE, in Python eval_task=...)"
                )
        self._sets = wordings(self._training)

    def _check_wordings(self, tasks: Sequence[Task]) -> None:
        """Raise TaskError where a step would cut a set of wordings."""
        if not any(SAME_AS in task.info for task in tasks):
            return
        sizes = sorted({len(wording_set) for wording_set in wordings(tasks)})
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
        """Apply `change` to each task; where it returns None, drop the task and the other wordings of its set.

        Raises TaskError where no task is left on one side.
        """
        sides: list[list[Task]] = []
        for side, side_tasks in (("training", self._training), ("held-out", self._held_out)):
            new_sets = [[change(task) for task in wording_set] for wording_set in wordings(side_tasks)]
            fitting_tasks = [
                task for wording_set in new_sets if None not in wording_set for task in wording_set if task is not None
            ]
            if not fitting_tasks:
                raise TaskError(f"{self.name}: the prompts of all {len(side_tasks)} {side} tasks are too long")
            sides.append(fitting_tasks)
        self._training, self._held_out = sides
        self._sets = wordings(self._training)

    @property
    def unanswered(self) -> Task | None:
        """First task without an answer, of both sides; None if all have one."""
        return next((t for t in (*self._training, *self._held_out) if t.answer is None), None)

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw `n` training tasks; a task is repeated only in the next epoch."""
        sets = self._sets
        set_size = len(sets[0])
        task_count = len(sets) * set_size

        def order(epoch: int) -> Any:
            # sets are shuffled as a whole: the wordings of a task follow each other
            set_order = stream(self.seed, epoch).permutation(len(sets))
            return (set_order[:, None] * set_size + range(set_size)).ravel() if set_size > 1 else set_order

        return [sets[place // set_size][place % set_size] for place in self.places(task_count, n, step, order)]

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks, in their order."""
        return self._held_out[:n]

    def observe(self, forest: Forest) -> None:
        """Do nothing: results don't change the order."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise TaskError(f"task {self.name!r} keeps no state, but the checkpoint holds {sorted(state)}")


def wordings(tasks: Sequence[Task]) -> list[list[Task]]:
    """Sets of tasks with one `info["same_as"]`, by their first; a task without one is a set."""
    sets: dict[tuple[bool, str], list[Task]] = {}
    for task in tasks:
        # True in the key keeps an id that equals another task's `same_as` apart
        is_single = SAME_AS not in task.info
        sets.setdefault((is_single, task.id if is_single else str(task.info[SAME_AS])), []).append(task)
    return list(sets.values())


def _by_hash(tasks: list[Task], fraction: float) -> tuple[list[Task], list[Task]]:
    """Split into training and held-out tasks: a prompt whose hash is below `fraction` is held out, at least the one
    with the lowest hash and never all. Wordings of one task share the hash of `same_as`."""
    hashes = [fraction_of(str(t.info.get(SAME_AS, t.prompt))) for t in tasks]
    distinct = sorted(set(hashes))
    cut = min(max(sum(x < fraction for x in distinct), 1), len(distinct) - 1)
    pairs = list(zip(tasks, hashes, strict=True))
    return [t for t, x in pairs if x >= distinct[cut]], [t for t, x in pairs if x < distinct[cut]]
