"""Tasks from a file of rows: JSON Lines, CSV or parquet."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gxpo.base import parquet_files
from gxpo.base.errors import TaskError
from gxpo.base.usercode import one_line
from gxpo.environments.tasks.epochs import KINDS
from gxpo.environments.tasks.listed import ListedTasks
from gxpo.environments.tasks.padding import row_trim
from gxpo.environments.tasks.rows import COLUMNS, Columns, Row, task_of, tasks_of
from gxpo.environments.tasks.source import check_options
from gxpo.parts.protocols import Task

OTHERS = (";", "\t", "|")  # what separates cells in files that are called .csv all the same
MOST_BYTES = 1 << 32  # of a file of text
MOST_LINE = 1 << 26  # characters of a line of JSON
MOST_HEADING = 1 << 20  # characters of a heading of CSV
MOST_COLUMNS = 10_000  # of CSV


def read_tasks(path: Path, columns: Columns | None = None) -> list[Task]:
    """Read tasks, one a row: a prompt (text or messages), an answer (text or number), an id (optional), and others.

    The default id is the file's stem and the number of its line or row. Blank lines are skipped; a CSV file has a
    heading, and its cells are texts. Raises `TaskError` with the file, the line and the field; nothing is half-loaded.
    """
    path = path.expanduser()
    if not path.is_file():
        raise TaskError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    rows = {".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}[path.suffix]
    example = '; each line must be {"prompt": ..., "answer": ...}' if path.suffix == ".jsonl" else ""
    return tasks_of(rows(path), columns or COLUMNS, str(path), example)


def check_size(path: Path) -> None:
    """Raise TaskError for a text file that is too large to read."""
    if (size := path.stat().st_size) > MOST_BYTES:
        raise TaskError(f"{path}: has {size:,} bytes, and at most {MOST_BYTES:,} are read: split it")


def _text(path: Path, encoding: str) -> str:
    check_size(path)
    try:
        with path.open(encoding=encoding, newline="" if path.suffix == ".csv" else None) as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise TaskError(_encoding(path, error)) from error
    except OSError as error:
        raise TaskError(f"{path}: can't be read ({one_line(str(error))})") from error


def _encoding(path: Path, error: UnicodeDecodeError) -> str:
    """Error message for a file that is not UTF-8: its likely encoding, the first line that shows it, and the remedy."""
    raw = path.read_bytes()
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        encoding, evidence = "UTF-16", "it begins with that mark"
    else:
        offset = error.start
        line = raw.count(b"\n", 0, offset) + 1
        # control characters are in no encoding of text: a picture, an archive, a parquet file of another name
        if any(byte < 32 and byte not in b"\t\n\r\f" for byte in raw):
            return f"{path}: is no text: byte 0x{raw[offset]:02x} in line {line}; a .jsonl or .csv file in UTF-8 is"
        # latin-1 leaves 0x80 to 0x9F to control characters; windows-1252 has quotes and dashes there
        encoding = "windows-1252" if any(0x80 <= byte < 0xA0 for byte in raw) else "latin-1"
        evidence = f"byte 0x{raw[offset]:02x} in line {line}"
    return (
        f"{path}: is not UTF-8 and looks like {encoding} ({evidence}): convert it, "
        f"iconv -f {encoding} -t utf-8 {path.name} > {path.stem}-utf8{path.suffix}"
    )


def _json_lines(path: Path) -> Iterator[Row | TaskError]:
    # not splitlines(): JSON texts may hold U+2028 and other characters that it cuts at
    for number, line in enumerate(_text(path, "utf-8").split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                if len(line) > MOST_LINE:
                    raise TaskError(f"{where}: has {len(line):,} characters, and at most {MOST_LINE:,} are read")
                row = _object(line, where)
            except TaskError as error:
                yield error  # `tasks_of` reports all bad rows together
                continue
            yield where, f"{path.stem}/{number}", row


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
    """Parse the task of one line, which must have an answer; TaskError that begins with `where` otherwise."""
    return task_of(where, default_id, _object(line, where), columns, has_answers=True)


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _csv(path: Path) -> Iterator[Row | TaskError]:
    lines = _text(path, "utf-8-sig").splitlines(keepends=True)
    if delimiter := _delimiter(lines, path):
        raise TaskError(
            f"{path}: cells are separated by {delimiter!r}, not by commas: write it with commas, and in quotes what "
            f"has commas in it (pandas: read_csv({path.name!r}, sep={delimiter!r}).to_csv(..., index=False))"
        )
    reader = csv.DictReader(lines, strict=True)
    try:
        if (n := len(reader.fieldnames or ())) > MOST_COLUMNS:
            raise TaskError(f"{path}: has {n:,} columns, and at most {MOST_COLUMNS:,} are read")
        for number, row in enumerate(reader, start=1):
            where = f"{path}, line {reader.line_num}"
            # DictReader puts surplus cells under the key None, and None into columns of a short row
            if None in row or None in row.values():
                yield TaskError(f"{where}: has another number of cells than the heading: quote those with commas")
                continue
            yield where, f"{path.stem}/{number}", row
    except csv.Error as error:
        yield TaskError(f"{path}, line {max(1, reader.line_num)}: not valid CSV ({error})")


def _delimiter(lines: Sequence[str], path: Path) -> str | None:
    """Find the delimiter of a heading that has no commas; None where commas separate it, or where it has one cell."""
    heading = next((line for line in lines if line.strip()), "").strip()
    if len(heading) > MOST_HEADING:
        raise TaskError(f"{path}: its heading has {len(heading):,} characters, and at most {MOST_HEADING:,} are read")
    cell_counts = {d: _cells(heading, d) for d in (",", *OTHERS)}
    likeliest = max(OTHERS, key=cell_counts.__getitem__)
    return likeliest if cell_counts[","] == 1 and cell_counts[likeliest] > 1 else None


def _cells(heading: str, delimiter: str) -> int:
    try:
        return len(next(csv.reader([heading], delimiter=delimiter), []))
    except csv.Error:  # a cell beyond the limit of the module: the reader says which line it is in
        return 1


def _parquet(path: Path) -> Iterator[Row]:
    trim = row_trim(parquet_files.schema(path, TaskError))
    for number, row in enumerate(parquet_files.rows(path, TaskError), start=1):
        yield f"{path}, row {number}", f"{path.stem}/{number}", row if trim is None else trim(row)


@dataclass
class TaskFile(ListedTasks):
    """Tasks from a file, held-out ones from `held_out_path` or, without it, a share of the prompts."""

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
        columns, others = Columns.among(options)
        return cls(path, seed, others.pop("held_out", None), per_step=per_step, columns=columns, **others)

    def __post_init__(self) -> None:
        options = {"held_out": self.held_out_path, "held_out_fraction": self.held_out_fraction}
        check_options(self.path, options, self.options)
        self.name = self.path
        columns = self.columns
        columns.check(self.path)
        held_out = None
        if self.held_out_path is not None:
            if not self.held_out_path.endswith(KINDS):
                raise TaskError(f"task {self.path!r}: held_out {self.held_out_path!r} is no {', '.join(KINDS)} file")
            held_out = read_tasks(Path(self.held_out_path), columns)
        self.split(read_tasks(Path(self.path), columns), held_out, self.held_out_fraction)
