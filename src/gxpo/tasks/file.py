"""Questions and answers from a file: JSON Lines, CSV, parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gxpo.errors import TaskError, need
from gxpo.protocols import Task
from gxpo.tasks.listed import ListedTasks
from gxpo.tasks.rows import COLUMNS, Columns, Row, task_of, tasks_of
from gxpo.tasks.source import check_options
from gxpo.usercode import one_line

KINDS = (".jsonl", ".csv", ".parquet")


def read_tasks(path: Path, columns: Columns | None = None) -> list[Task]:
    """Read tasks, one a row: a prompt (text or messages), an answer (text or number), an id (optional), and others.

    The default id is the file's stem and the number of its line or row. Blank lines are skipped; a CSV file has a
    heading, and its cells are texts. Raises `TaskError` with the file, the line and the field; nothing is half-loaded.
    """
    if not path.is_file():
        raise TaskError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    rows = {".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}[path.suffix]
    example = '; each line must be {"prompt": ..., "answer": ...}' if path.suffix == ".jsonl" else ""
    return tasks_of(rows(path), columns or COLUMNS, str(path), example)


def _text(path: Path, encoding: str) -> str:
    try:
        with path.open(encoding=encoding, newline="" if path.suffix == ".csv" else None) as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: can't be read as UTF-8 text ({error})") from error


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_text(path, "utf-8").split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, f"{path.stem}/{number}", _object(line, where)


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_not_a_number)
        if "\\u" in line:
            json.dumps(record, ensure_ascii=False).encode()  # half of a surrogate pair is no character
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: not valid JSON ({one_line(str(error))})") from error
    if not isinstance(record, dict):
        raise TaskError(f'{where}: must be an object with "prompt" and "answer", not {line.strip()[:40]!r}')
    return record


def parse_task(line: str, where: str, default_id: str, columns: Columns = COLUMNS) -> Task:
    """The task of one line, with an answer; `TaskError` that begins with `where` if it can't be one."""
    return task_of(where, default_id, _object(line, where), columns, answered=True)


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _csv(path: Path) -> Iterator[Row]:
    reader = csv.DictReader(_text(path, "utf-8-sig").splitlines(keepends=True), strict=True)
    try:
        for number, row in enumerate(reader, start=1):
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise TaskError(f"{where}: has another number of cells than the heading: quote those with commas")
            yield where, f"{path.stem}/{number}", row
    except csv.Error as error:
        raise TaskError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from error


def _parquet(path: Path) -> Iterator[Row]:
    parquet: Any = need("pyarrow.parquet", "data")
    try:
        rows = parquet.read_table(path).to_pylist()
    except Exception as error:  # arrow has an exception for each thing that a file may be
        raise TaskError(f"{path}: can't be read as parquet ({one_line(str(error))})") from error
    for number, row in enumerate(rows, start=1):
        yield f"{path}, row {number}", f"{path.stem}/{number}", row


@dataclass
class TaskFile(ListedTasks):
    """Tasks from a file. `held_out_path`: a second file; without it a share of the prompts is held out."""

    path: str
    seed: int = 0
    held_out_path: str | None = None
    held_out_fraction: float = 0.1
    per_step: int = 32
    columns: Columns = COLUMNS

    options: ClassVar[Mapping[str, Any]] = {
        "held_out": (str, type(None)),
        "held_out_fraction": (float, int),
        **Columns.options,
    }

    @classmethod
    def make(cls, path: str, options: Mapping[str, Any], *, seed: int, per_step: int) -> TaskFile:
        """Make the source from the options of a configuration."""
        check_options(path, options, cls.options)
        columns, rest = Columns.among(options)
        return cls(path, seed, rest.pop("held_out", None), per_step=per_step, columns=columns, **rest)

    def __post_init__(self) -> None:
        given = {"held_out": self.held_out_path, "held_out_fraction": self.held_out_fraction}
        check_options(self.path, given, self.options)
        self.name = self.path
        columns = self.columns
        columns.check(self.path)
        held_out = None
        if self.held_out_path is not None:
            if not self.held_out_path.endswith(KINDS):
                raise TaskError(f"task {self.path!r}: held_out {self.held_out_path!r} is no {', '.join(KINDS)} file")
            held_out = read_tasks(Path(self.held_out_path), columns)
        self.split(read_tasks(Path(self.path), columns), held_out, self.held_out_fraction)
