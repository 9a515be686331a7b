"""Rows of a table of rollouts in any of four formats, told apart by content: JSON Lines, a JSON array, CSV, Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.base.errors import need
from gxpo.base.parquet_files import fault_of
from gxpo.doctor.rollout_sample import by_step, spread

LARGE = 160 * 2**20  # bytes; of a larger file only stretches are read
_STRETCHES, _STRETCH = 48, 2**20
STRETCHES = _STRETCHES * _STRETCH  # bytes of these
_LONGEST = 16 * 2**20  # bytes of a line; longer ones are skipped

_BATCH = 2_000  # rows of a part of a large Parquet table
_PARTS = 32  # such parts
MOST_DECODED = 2**30  # bytes of a Parquet table that are decoded to reach rows inside its row groups
_DELIMITERS = ",\t;"


@dataclass
class Lines:
    """Parsed rows of a file with their line numbers from 1 (-1 - byte offset if the lines before were not counted).

    total  rows in the file
    bad    rows that could not be read
    exact  `total` was counted, not estimated
    """

    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    total: float = 0.0
    bad: int = 0
    exact: bool = True


def read_lines(path: Path, keys: Sequence[str], budget: int, large: int = LARGE) -> Lines:
    """Sample about `budget` rows of JSON Lines in whole groups, without parsing the lines that are not kept.

    Lines with equal fields `keys` are one group; of two keys the first is the step.
    """
    size = path.stat().st_size
    if size <= large:
        lines = path.read_bytes().split(b"\n")
        numbered = [(i + 1, line) for i, line in enumerate(lines) if line.strip()]
        sample = _sample_lines(numbered, keys, budget, path.name)
    else:
        sample = _stretches(path, size, keys, budget)
    return _without_columns(sample, keys, budget, path.name)


def _without_columns(sample: Lines, keys: Sequence[str], budget: int, salt: str) -> Lines:
    """Take lines of columns apart into rows, of which about `budget` are kept; other lines stay as they are."""
    rows = [(number, row) for number, line in sample.rows for row in line_rows(line)]
    if len(rows) == len(sample.rows):
        return sample
    row_keys = [tuple(repr(row.get(k)) for k in keys) for _, row in rows]
    places = by_step([k[0] if len(keys) > 1 else "" for k in row_keys], row_keys, budget, salt)
    total = sample.total * len(rows) / max(len(sample.rows), 1)
    return Lines([rows[i] for i in places], total, sample.bad, sample.exact)


def line_rows(line: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of a line: itself, or one for each place of its columns, where all its values are lists of one length.

    ms-swift's completions.jsonl and ROLL's dumps have a line of columns for each step.
    """
    lengths = {len(v) if isinstance(v, list) else -1 for v in line.values()}
    if len(lengths) != 1 or not lengths - {-1, 0} or all(isinstance(v[0], (dict, list)) for v in line.values()):
        return [line]
    return [dict(zip(line, values, strict=True)) for values in zip(*line.values(), strict=True)]


def _stretches(path: Path, size: int, keys: Sequence[str], budget: int) -> Lines:
    """Sample rows from stretches spread over a large file; the number of its rows is estimated from theirs."""
    sample = Lines(exact=False)
    stretch = min(_STRETCH, size // (2 * _STRETCHES))
    offsets = [round(i * (size - stretch) / (_STRETCHES - 1)) for i in range(_STRETCHES)]
    lines_seen = bytes_seen = 0
    with path.open("rb") as file:
        for k, begin in enumerate(offsets):
            file.seek(begin)
            block = file.read(stretch)
            # a stretch begins inside a line, except the first, and ends inside one, except the last
            if k and (cut := block.find(b"\n")) >= 0:
                begin, block = begin + cut + 1, block[cut + 1 :]
            if k < len(offsets) - 1:
                end = block.rfind(b"\n")
                if end < 0 and len(block) < _LONGEST:  # one line longer than the stretch
                    block += file.readline(_LONGEST)
                else:
                    block = block[: end + 1]
            # lines before a stretch are not counted: the byte offset is the place of a row
            numbered, offset = [], begin
            for line in block.split(b"\n"):
                if line.strip():
                    numbered.append((-1 - offset, line))
                offset += len(line) + 1
            lines_seen += len(numbered)
            bytes_seen += len(block)
            part = _sample_lines(_inner(numbered, keys), keys, max(budget // len(offsets), 1), f"{path.name}{k}")
            sample.rows += part.rows
            sample.bad += part.bad
    # by bytes, as the lines outside of the stretches are never read
    sample.total = lines_seen * size / max(bytes_seen, 1)
    return sample


def _inner(numbered: list[tuple[int, bytes]], keys: Sequence[str]) -> list[tuple[int, bytes]]:
    """Drop the first and the last group of a stretch, which its ends may have cut."""
    line_keys = [_key(line, keys) for _, line in numbered]
    if len(set(line_keys)) < 3:
        return numbered
    return [row for row, key in zip(numbered, line_keys, strict=True) if key not in (line_keys[0], line_keys[-1])]


def _sample_lines(numbered: list[tuple[int, bytes]], keys: Sequence[str], budget: int, salt: str) -> Lines:
    """Choose lines by the raw bytes of their keys, and parse these."""
    sample = Lines(total=len(numbered))
    line_keys = [_key(line, keys) for _, line in numbered]
    places = by_step([k[0] if len(keys) > 1 else b"" for k in line_keys], line_keys, budget, salt)
    for i in places:
        number, line = numbered[i]
        row = parse_object(line)
        if row is None:
            sample.bad += 1
        else:
            sample.rows.append((number, row))
    return sample


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Parse a line as a JSON object; None if it is none."""
    try:
        row = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


_VALUE = re.compile(rb'\s*("[^"\\]*(?:\\.[^"\\]*)*"|[^",\[{}\]]+)', re.DOTALL)


def _key(line: bytes, keys: Sequence[str]) -> tuple[bytes, ...]:
    """Raw bytes of the fields of a line. Quotes inside texts are escaped, so `"name":` unescaped is always a field."""
    values = []
    for name in keys:
        quoted = f'"{name}":'.encode()
        begin = line.find(quoted)
        while begin > 0 and line[begin - 1 : begin] == b"\\":
            begin = line.find(quoted, begin + 1)
        match = _VALUE.match(line, begin + len(quoted)) if begin >= 0 else None
        values.append(match[1] if match else b"")
    return tuple(values)


def first_rows(path: Path, n: int = 8) -> list[dict[str, Any]]:
    """Parse the first objects among the first lines of a file; [] if it does not begin as JSON Lines."""
    with path.open("rb") as file:
        head = file.read(2**16)
        if b"\n" not in head and head.lstrip()[:1] == b"{" and len(head) == 2**16:
            head += file.readline(_LONGEST)
    lines = [line for line in head.split(b"\n") if line.strip()][: 4 * n]
    rows = [row for line in map(parse_object, lines) if line is not None for row in line_rows(line)]
    return rows[:n]


def line_count(path: Path) -> float:
    """Estimate the number of lines of a file by the mean length of its first lines."""
    with path.open("rb") as file:
        head = file.read(2**20)
    return path.stat().st_size / max(len(head), 1) * max(head.count(b"\n"), 1)


def form(path: Path) -> str | None:
    """Format of a file by its first bytes: parquet, lines, array or csv (any text with a delimiter); else None."""
    with path.open("rb") as file:
        head = file.read(4096)
    if head[:4] == b"PAR1":
        return "parquet"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"{"):
        return "lines"
    if start.startswith(b"["):
        return "array"
    first = start.split(b"\n")[0]
    return "csv" if b"\0" not in head and any(d.encode() in first for d in _DELIMITERS) else None


def table_names(path: Path) -> list[str] | None:
    """Names of a table's columns; of JSON all names in its first rows. None if it can't be read."""
    file_form = form(path)
    if file_form == "parquet":
        parquet = need("pyarrow.parquet", "doctor")
        try:
            metadata, names = parquet.read_metadata(path), parquet.read_schema(path).names
        # the kinds of errors that pyarrow raises are its own, beside OSError and ValueError
        except Exception:
            return None
        return None if fault_of(metadata, path.stat().st_size) else list(names)
    if file_form == "csv":
        return _header(path)[0]
    rows = first_rows(path) if file_form == "lines" else _array(path)[:8] if file_form == "array" else []
    return list(dict.fromkeys(name for row in rows for name in row)) or None


def row_count(path: Path) -> float:
    """Number of rows of a table, exact for Parquet and else estimated."""
    if form(path) == "parquet":
        parquet = need("pyarrow.parquet", "doctor")
        try:
            return float(parquet.read_metadata(path).num_rows)
        except Exception:  # as above
            return 0.0
    return line_count(path)


def read_table(path: Path, keys: Sequence[str], budget: int) -> Lines:
    """Sample about `budget` rows of a table in whole groups: rows with equal columns `keys`; of two keys the first is
    the step."""
    file_form = form(path)
    if file_form == "lines":
        return read_lines(path, keys, budget)
    if file_form == "parquet":
        rows, total, bad = _parquet(path, budget)
    elif file_form == "csv":
        rows, total, bad = _csv(path)
    else:
        documents = _array(path)
        rows, total, bad = list(enumerate(documents, 1)), float(len(documents)), 0
    # `_csv` estimates the total of a file that it reads in part
    exact = file_form == "parquet" or total == len(rows) + bad
    row_keys = [tuple(repr(row.get(k)) for k in keys) for _, row in rows]
    # stretches cut groups at their ends
    if file_form == "parquet" and len(rows) < total:
        uncut = _uncut([number for number, _ in rows], row_keys, int(total))
        rows, row_keys = [rows[i] for i in uncut], [row_keys[i] for i in uncut]
    places = by_step([k[0] if len(keys) > 1 else "" for k in row_keys], row_keys, budget, path.name)
    return Lines([rows[i] for i in places], total, bad, exact=exact)


def _uncut(numbers: Sequence[int], keys: Sequence[object], total: int) -> list[int]:
    """Rows of complete groups: not those at the ends of stretches of consecutive rows, which may go on outside."""
    begins = [i for i, n in enumerate(numbers) if n > 0 and (i == 0 or numbers[i - 1] != n - 1)]
    ends = [i for i, n in enumerate(numbers) if n < total - 1 and (i + 1 == len(numbers) or numbers[i + 1] != n + 1)]
    cut = {keys[i] for i in (*begins, *ends)}
    return [i for i, key in enumerate(keys) if key not in cut]


def values(column: Any) -> list[Any]:
    """Convert an Arrow column to a list; bytes that are not UTF-8 are replaced, unreadable values are None."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        pass
    try:
        raw = column.cast("large_binary").to_pylist()
    except Exception:  # as above; a conversation can't be cast
        return [None] * len(column)
    return [None if v is None else v.decode("utf-8", "replace") for v in raw]


def _array(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON array; [] for a damaged or a large file, as an array can only be parsed as a whole."""
    if path.stat().st_size > LARGE:
        return []
    try:
        document = json.loads(path.read_bytes().decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return []
    return [row for row in document if isinstance(row, dict)] if isinstance(document, list) else []


def _header(path: Path) -> tuple[list[str], str]:
    """Column names of a CSV, and its delimiter: the one that its first line has most of."""
    with path.open("rb") as file:
        first = file.readline(2**16).decode("utf-8-sig", "replace")
    delimiter = max(_DELIMITERS, key=first.count)
    try:
        return [n.strip() for n in next(csv.reader([first.rstrip("\r\n")], delimiter=delimiter), [])], delimiter
    except csv.Error:
        return [], delimiter


def _csv(path: Path) -> tuple[list[tuple[int, dict[str, Any]]], float, int]:
    """Read a CSV: rows, their total number, and how many have too few or too many fields. Of a large file the first
    part."""
    names, delimiter = _header(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        data = file.read(LARGE)
    # csv refuses a line with a NUL
    text = data.decode("utf-8-sig", "replace").replace("\0", "")
    rows: list[tuple[int, dict[str, Any]]] = []
    bad = 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    for number, values in _number_rows(reader):
        if number == 1 or values == []:
            continue
        if values is None or len(values) != len(names):
            bad += 1
        else:
            rows.append((number, {n: v for n, v in zip(names, values, strict=True) if v != ""}))
    total = len(rows) + bad if size <= LARGE else (len(rows) + bad) * size / LARGE
    return rows, float(total), bad


def _number_rows(reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str] | None]]:
    """Number the rows of a CSV reader from 1; None for a row that it can't parse, after which it goes on."""
    number = 0
    while True:
        number += 1
        try:
            yield number, next(reader)
        except StopIteration:
            return
        except csv.Error:  # a field beyond the module's limit
            yield number, None


def _parquet(path: Path, budget: int) -> tuple[list[tuple[int, dict[str, Any]]], float, int]:
    """Read all rows of a small Parquet table; of a large one stretches spread over it, the first and the last included.

    Returns numbered rows, their total number, and 1 if the file is damaged.
    """
    parquet = need("pyarrow.parquet", "doctor")
    rows: list[tuple[int, dict[str, Any]]] = []
    try:
        with parquet.ParquetFile(path) as file:
            if fault_of(file.metadata, path.stat().st_size):
                return [], 1.0, 1
            total = file.metadata.num_rows
            groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
            starts = [sum(g.num_rows for g in groups[:i]) for i in range(len(groups))]
            if total <= max(4 * budget, 20_000) or sum(g.total_byte_size for g in groups) <= MOST_DECODED:
                # a batch is the unit that is kept: one for a small table, stretches of a large one
                size = _BATCH if total > max(4 * budget, 20_000) else max(total, 1)
                parts_read = set(spread(-(-total // size), _PARTS))
                parts = (
                    (k * size, b) for k, b in enumerate(file.iter_batches(size, use_threads=False)) if k in parts_read
                )
            else:  # too large to be decoded: the first rows of row groups
                parts = ((starts[i], _head(file, i)) for i in spread(len(groups), _PARTS))
            for begin, batch in parts:
                rows += [(begin + k, row) for k, row in enumerate(batch.to_pylist())]
    except Exception:  # as above
        return rows, float(len(rows) + 1), 1
    return rows, float(total), 0


def _head(file: Any, group: int) -> Any:
    """First rows of a row group."""
    return next(file.iter_batches(_BATCH, row_groups=[group], use_threads=False))
