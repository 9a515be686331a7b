"""Questions and answers from a JSON Lines file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gxpo.errors import TaskError
from gxpo.protocols import Message, Task
from gxpo.tasks.listed import ListedTasks
from gxpo.tasks.source import check_options
from gxpo.usercode import one_line


def read_tasks(path: Path) -> list[Task]:
    """Read tasks, one a line: `{"prompt": text or messages, "answer": text or number, "id": text (optional), ...}`.

    Other fields go to `task.info`. The default id is the file's stem and the line number. Blank lines are skipped.
    Raises `TaskError` with the file, the line and the field; nothing is half-loaded.
    """
    if not path.is_file():
        raise TaskError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: can't be read as UTF-8 text ({error})") from error
    tasks: list[Task] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        task = parse_task(line, f"{path}, line {number}", f"{path.stem}/{number}")
        if task.id in line_of:
            raise TaskError(f"{path}, line {number}: id {task.id!r} is already that of line {line_of[task.id]}")
        line_of[task.id] = number
        tasks.append(task)
    if not tasks:
        raise TaskError(f'{path}: no tasks in it; each line must be {{"prompt": ..., "answer": ...}}')
    return tasks


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def parse_task(line: str, where: str, default_id: str) -> Task:
    """The task of one line; `TaskError` that begins with `where` if it can't be one."""
    try:
        record = json.loads(line, parse_constant=_not_a_number)
        if "\\u" in line:
            json.dumps(record, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: not valid JSON ({one_line(str(error))})") from error
    if not isinstance(record, dict):
        raise TaskError(f'{where}: must be an object with "prompt" and "answer", not {line.strip()[:40]!r}')
    prompt, answer, name = record.pop("prompt", None), record.pop("answer", None), record.pop("id", default_id)
    if isinstance(prompt, list):
        prompt = messages(prompt, where)
    elif not isinstance(prompt, str) or not prompt:
        raise TaskError(f"{where}: field 'prompt' must be a text that is not empty or messages, not {prompt!r}")
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or answer == "":
        raise TaskError(f"{where}: field 'answer' must be a text that is not empty or a number, not {answer!r}")
    if not isinstance(name, str) or not name:
        raise TaskError(f"{where}: field 'id' must be a text that is not empty, not {name!r}")
    return Task(name, prompt, str(answer), record)


def messages(given: list[Any], where: str) -> tuple[Message, ...]:
    """Validate a prompt of messages, each {"role": text, "content": text}."""
    for message in given:
        if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise TaskError(f"{where}: field 'prompt' must hold messages with 'role' and 'content', not {message!r}")
    if not given:
        raise TaskError(f"{where}: field 'prompt' holds no message")
    return tuple(given)


@dataclass
class JsonLines(ListedTasks):
    """Tasks from a JSON Lines file. `held_out_path`: a second file; without it a share of the prompts is held out."""

    path: str
    seed: int = 0
    held_out_path: str | None = None
    held_out_fraction: float = 0.1
    per_step: int = 32

    options: ClassVar[Mapping[str, Any]] = {"held_out": (str, type(None)), "held_out_fraction": (float, int)}

    def __post_init__(self) -> None:
        given = {"held_out": self.held_out_path, "held_out_fraction": self.held_out_fraction}
        check_options(self.path, given, self.options)
        self.name = self.path
        held_out = None if self.held_out_path is None else read_tasks(Path(self.held_out_path))
        self.split(read_tasks(Path(self.path)), held_out, self.held_out_fraction)
