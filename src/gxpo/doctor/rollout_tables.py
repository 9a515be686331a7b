"""Rows of a table of rollouts in any of four formats, told apart by content: JSON Lines, a JSON array, CSV, Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gxpo.base.errors import need
from gxpo.base.parquet_files import fault_of
from gxpo.doctor.rollout_lines import LARGE, Lines, first_rows, line_count, read_lines
from gxpo.doctor.rollout_sample import by_step, spread

_BATCH = 2_000  # rows of a part of a large Parquet table
_PARTS = 32  # such parts
MOST_DECODED = 2**30  # bytes of a Parquet table that are decoded to reach rows inside its row groups
_DELIMITERS = ",\t;"


def form(path: Path) -> str | None:
    """parquet, lines, array or csv, by the first bytes; None: none of them. CSV is any text that has a delimiter."""
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
    """Names of the columns; of JSON all that its first rows have."""
    what = form(path)
    if what == "parquet":
        parquet = need("pyarrow.parquet", "doctor")
        try:
            metadata, names = parquet.read_metadata(path), parquet.read_schema(path).names
        except Exception:  # damaged files: pyarrow raises its own errors beside OSError and ValueError
            return None
        return None if fault_of(metadata, path.stat().st_size) else list(names)
    if what == "csv":
        return _header(path)[0]
    rows = first_rows(path) if what == "lines" else _array(path)[:8] if what == "array" else []
    return list(dict.fromkeys(name for row in rows for name in row)) or None


def row_count(path: Path) -> float:
    """About how many rows there are."""
    if form(path) == "parquet":
        parquet = need("pyarrow.parquet", "doctor")
        try:
            return float(parquet.read_metadata(path).num_rows)
        except Exception:  # as above
            return 0.0
    return line_count(path)


def read_table(path: Path, keys: Sequence[str], budget: int) -> Lines:
    """About `budget` rows in whole groups: rows that agree in the columns `keys`, the first of two being the step."""
    what = form(path)
    if what == "lines":
        return read_lines(path, keys, budget)
    if what == "parquet":
        rows, total, bad = _parquet(path, budget)
    elif what == "csv":
        rows, total, bad = _csv(path)
    else:
        found = _array(path)
        rows, total, bad = list(enumerate(found, 1)), float(len(found)), 0
    exact = what == "parquet" or total == len(rows) + bad
    seen = [tuple(repr(row.get(k)) for k in keys) for _, row in rows]
    if what == "parquet" and len(rows) < total:
        whole = _uncut([number for number, _ in rows], seen, int(total))
        rows, seen = [rows[i] for i in whole], [seen[i] for i in whole]
    chosen = by_step([k[0] if len(keys) > 1 else "" for k in seen], seen, budget, path.name)
    return Lines([rows[i] for i in chosen], total, bad, exact=exact)


def _uncut(numbers: Sequence[int], keys: Sequence[object], total: int) -> list[int]:
    """Rows but those of groups at the ends of stretches of consecutive rows, which may go on outside."""
    begins = [i for i, n in enumerate(numbers) if n > 0 and (i == 0 or numbers[i - 1] != n - 1)]
    ends = [i for i, n in enumerate(numbers) if n < total - 1 and (i + 1 == len(numbers) or numbers[i + 1] != n + 1)]
    cut = {keys[i] for i in (*begins, *ends)}
    return [i for i, key in enumerate(keys) if key not in cut]


def values(column: Any) -> list[Any]:
    """An Arrow column as a list; bytes that are not UTF-8 are replaced, and what still can't be read is None."""
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
    if path.stat().st_size > LARGE:
        return []
    try:
        found = json.loads(path.read_bytes().decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return []
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _header(path: Path) -> tuple[list[str], str]:
    with path.open("rb") as file:
        first = file.readline(2**16).decode("utf-8-sig", "replace")
    delimiter = max(_DELIMITERS, key=first.count)
    try:
        return [n.strip() for n in next(csv.reader([first.rstrip("\r\n")], delimiter=delimiter), [])], delimiter
    except csv.Error:
        return [], delimiter


def _csv(path: Path) -> tuple[list[tuple[int, dict[str, Any]]], float, int]:
    """Rows, the rows that there are, and how many have too few or too many fields. Of a large file its first part."""
    names, delimiter = _header(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        data = file.read(LARGE)
    text = data.decode("utf-8-sig", "replace").replace("\0", "")
    rows: list[tuple[int, dict[str, Any]]] = []
    bad = 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    for number, values in _numbered(reader):
        if number == 1 or values == []:
            continue
        if values is None or len(values) != len(names):
            bad += 1
        else:
            rows.append((number, {n: v for n, v in zip(names, values, strict=True) if v != ""}))
    total = len(rows) + bad if size <= LARGE else (len(rows) + bad) * size / LARGE
    return rows, float(total), bad


def _numbered(reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str] | None]]:
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
    """All rows of a small table; of a large one stretches spread over it, the first and the last rows among them."""
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
                size = _BATCH if total > max(4 * budget, 20_000) else max(total, 1)
                kept = set(spread(-(-total // size), _PARTS))
                parts = ((k * size, b) for k, b in enumerate(file.iter_batches(size, use_threads=False)) if k in kept)
            else:  # too large to be decoded: the first rows of row groups
                parts = ((starts[i], _head(file, i)) for i in spread(len(groups), _PARTS))
            for begin, batch in parts:
                rows += [(begin + k, row) for k, row in enumerate(batch.to_pylist())]
    except Exception:  # as above
        return rows, float(len(rows) + 1), 1
    return rows, float(total), 0


def _head(file: Any, group: int) -> Any:
    return next(file.iter_batches(_BATCH, row_groups=[group], use_threads=False))
