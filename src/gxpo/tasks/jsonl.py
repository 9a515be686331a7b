"""Questions and answers from a JSON Lines file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gxpo.errors import TaskError
from gxpo.protocols import Task
from gxpo.tasks.source import check_options, fraction_of, stream

if TYPE_CHECKING:
    from gxpo.forest import Forest


def read_tasks(path: Path) -> list[Task]:
    """One task a line: `{"prompt": text, "answer": text or number, "id": text (optional), ...}`.

    Other fields stand in `task.info`. The default id is the file's stem and the line number. Blank lines are skipped.
    Raises `TaskError` with the file, the line and the field; nothing is half-loaded.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise TaskError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: can't be read as UTF-8 text ({error})") from error
    tasks: list[Task] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        task = _parse(line, f"{path}, line {number}", f"{path.stem}/{number}")
        if task.id in line_of:
            raise TaskError(f"{path}, line {number}: id {task.id!r} is already that of line {line_of[task.id]}")
        line_of[task.id] = number
        tasks.append(task)
    if not tasks:
        raise TaskError(f'{path}: no tasks in it; each line must be {{"prompt": ..., "answer": ...}}')
    return tasks


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _parse(line: str, where: str, default_id: str) -> Task:
    try:
        record = json.loads(line, parse_constant=_not_a_number)
    except ValueError as error:
        raise TaskError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise TaskError(f'{where}: must be an object with "prompt" and "answer", not {line.strip()[:40]!r}')
    prompt, answer, name = record.pop("prompt", None), record.pop("answer", None), record.pop("id", default_id)
    if not isinstance(prompt, str) or not prompt:
        raise TaskError(f"{where}: field 'prompt' must be a text that is not empty, not {prompt!r}")
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or answer == "":
        raise TaskError(f"{where}: field 'answer' must be a text that is not empty or a number, not {answer!r}")
    if not isinstance(name, str) or not name:
        raise TaskError(f"{where}: field 'id' must be a text that is not empty, not {name!r}")
    return Task(name, prompt, str(answer), record)


@dataclass
class JsonLines:
    """Tasks of a file, in epochs: each is a new order of all of them that depends on the seed and the epoch alone.

    `held_out` names a second file; without it the share `held_out_fraction` of the prompts, chosen by their hash, is
    held out. The source has no state: step s takes the tasks from position s * `per_step` on, so with `per_step` tasks
    a step an epoch sees each once, and `draw(n, step)` is the beginning of `draw(m, step)` for n <= m.
    """

    path: str
    seed: int = 0
    held_out_path: str | None = None
    held_out_fraction: float = 0.1
    per_step: int = 32

    scorer_name: ClassVar[str] = "math"
    scorer: ClassVar[None] = None
    reward_default: ClassVar[str] = "math"
    options: ClassVar[Mapping[str, Any]] = {"held_out": (str, type(None)), "held_out_fraction": (float, int)}

    def __post_init__(self) -> None:
        given = {"held_out": self.held_out_path, "held_out_fraction": self.held_out_fraction}
        check_options(self.path, given, self.options)
        if not 0 < self.held_out_fraction < 1:
            raise TaskError(
                f"task {self.path!r}: held_out_fraction must be between 0 and 1, not {self.held_out_fraction}"
            )
        self.name = self.path
        tasks = read_tasks(Path(self.path))
        if self.held_out_path is None:
            self._training = [t for t in tasks if fraction_of(str(t.prompt)) >= self.held_out_fraction]
            self._held_out = [t for t in tasks if fraction_of(str(t.prompt)) < self.held_out_fraction]
        else:
            self._training, self._held_out = tasks, read_tasks(Path(self.held_out_path))
            prompts = {t.prompt for t in self._held_out}
            for task in self._training:
                if task.prompt in prompts:
                    raise TaskError(f"{self.path}: the prompt of task {task.id!r} is also in {self.held_out_path}")
        for side, found in (("training", self._training), ("held-out", self._held_out)):
            if not found:
                count = f"{len(tasks)} tasks"
                raise TaskError(
                    f"{self.path}: held_out_fraction {self.held_out_fraction} of {count} leaves no {side} task; "
                    f"change it or give held_out, a file"
                )

    def draw(self, n: int, step: int) -> list[Task]:
        """`n` training tasks; a task comes again only with the next epoch."""
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
        """Up to `n` held-out tasks, in the order of the file."""
        return self._held_out[:n]

    def observe(self, forest: Forest) -> None:
        """Nothing is learnt from results."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise TaskError(f"task {self.name!r} keeps no state, but the checkpoint holds {sorted(state)}")
