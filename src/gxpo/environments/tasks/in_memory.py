"""Tasks from Python objects (a list of rows, a `datasets.Dataset`, a `pandas.DataFrame`), written as JSON Lines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.padding import unpadded_rows, without_even_padding
from gxpo.environments.tasks.rows import Columns, tasks_of
from gxpo.parts.protocols import Task

FORMS = "a list of dicts, a datasets.Dataset, a pandas.DataFrame, a task source or a name"


def json_lines(data: Any, columns: Columns, label: str = "task") -> str:
    """Write rows as the text of a JSON Lines file, one task a line, which `tasks.file` reads.

    data   dicts or `Task`s, a Dataset or a DataFrame; numpy's numbers and arrays become plain ones, nan becomes null
    label  the argument that gave them, for messages
    Raises `TaskError` for rows that are no tasks, and for values that JSON does not have.
    """
    rows = plain_rows(data, label)
    # only validates: an error then names the argument and not the file that is written
    columns.check(label)
    tasks_of([(f"{label}, row {i}", f"{i}", row) for i, row in enumerate(rows)], columns, label)
    return "".join(f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in rows)


def plain_rows(data: Any, label: str) -> list[dict[str, Any]]:
    """Convert a list, a Dataset or a DataFrame to rows of JSON, without the nulls that Arrow adds."""
    rows = [plain_row(row, f"{label}, row {i}") for i, row in enumerate(rows_in(data, label))]
    return without_even_padding(rows, [str(name) for name in data.columns]) if _is_frame(data) else rows


def rows_in(data: Any, label: str) -> Iterable[Any]:
    """Iterate over the rows of a list, a Dataset or a DataFrame; TaskError for anything else."""
    if _is_frame(data):
        return data.to_dict("records")
    if isinstance(data, Mapping):
        # a DatasetDict is a dict of data sets
        if all(hasattr(part, "column_names") for part in data.values()) and data:
            first, *others = data
            names = f"{label}=data[{first!r}]" + (f" and eval_task=data[{others[0]!r}]" if others else "")
            raise TaskError(f"{label}: a DatasetDict holds several splits ({', '.join(map(str, data))}): give {names}")
        raise TaskError(f"{label}: one dict; give a list of them, as in [{{'prompt': ..., 'answer': ...}}]")
    # an IterableDataset: rows are held out by their share of all, which needs an end
    if hasattr(data, "column_names") and not hasattr(data, "__len__"):
        raise TaskError(f"{label}: a streaming data set has no end: give list(data.take(1000))")
    if isinstance(data, (str, bytes)) or not isinstance(data, Iterable):
        raise TaskError(f"{label}: {type(data).__name__} is not {FORMS}")
    return unpadded_rows(data)


def _is_frame(data: Any) -> bool:
    """Return True for a pandas DataFrame, which is not imported for this."""
    return hasattr(data, "to_dict") and hasattr(data, "columns")


def plain_row(row: Any, where: str) -> dict[str, Any]:
    """Convert a dict or a `Task` to a row of JSON."""
    if isinstance(row, Task):
        if row.prompt and not isinstance(row.prompt, str) and isinstance(row.prompt[0], int):
            raise TaskError(f"{where}: its prompt is token ids: give a text or messages, or a task source")
        row = {"id": row.id, "prompt": row.prompt, **({"answer": row.answer} if row.answer is not None else {}),
               **row.info}  # fmt: skip
    if not isinstance(row, Mapping):
        raise TaskError(f"{where}: must be a dict with 'prompt' and 'answer', not {str(row)[:60]!r}")
    return {_name(key, where): _plain(value, f"{where}, column {key!r}") for key, value in row.items()}


def _name(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise TaskError(f"{where}: the name of a column must be a text, not {key!r}")
    return key


def _plain(value: Any, where: str) -> Any:
    """Convert a value to JSON types; TaskError for one that JSON does not have."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise TaskError(f"{where}: {value} can't be written as JSON: leave the column out or make it a text")
        # pandas writes a missing cell as nan
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {_name(k, where): _plain(v, where) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, where) for v in value]
    if hasattr(value, "tolist"):  # numpy's and torch's
        return _plain(value.tolist(), where)
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    raise TaskError(
        f"{where}: {type(value).__name__} can't be written as JSON: leave the column out or make it text or numbers"
    )
