"""Tasks that are Python objects: rows of a list, a `datasets.Dataset` or a `pandas.DataFrame`, as JSON Lines."""

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


def json_lines(given: Any, columns: Columns, what: str = "task") -> str:
    """The rows as the text of a JSON Lines file, one task a line, which `tasks.file` reads.

    given  dicts or `Task`s, a Dataset or a DataFrame; numpy's numbers and arrays become plain ones, nan becomes null
    what   the argument that gave them, for messages
    Raises `TaskError` for rows that are no tasks, and for values that JSON does not have.
    """
    rows = plain_rows(given, what)
    columns.check(what)
    tasks_of([(f"{what}, row {i}", f"{i}", row) for i, row in enumerate(rows)], columns, what)
    return "".join(f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in rows)


def plain_rows(given: Any, what: str) -> list[dict[str, Any]]:
    """The rows of a list, a Dataset or a DataFrame as rows of JSON, without the nulls that Arrow adds."""
    rows = [plain_row(row, f"{what}, row {i}") for i, row in enumerate(rows_in(given, what))]
    return without_even_padding(rows, [str(name) for name in given.columns]) if _is_frame(given) else rows


def rows_in(given: Any, what: str) -> Iterable[Any]:
    """The rows of a list, a Dataset or a DataFrame; `TaskError` for anything else."""
    if _is_frame(given):
        return given.to_dict("records")
    if isinstance(given, Mapping):
        if all(hasattr(part, "column_names") for part in given.values()) and given:
            first, *others = given
            names = f"{what}=data[{first!r}]" + (f" and eval_task=data[{others[0]!r}]" if others else "")
            raise TaskError(f"{what}: a DatasetDict holds several splits ({', '.join(map(str, given))}): give {names}")
        raise TaskError(f"{what}: one dict; give a list of them, as in [{{'prompt': ..., 'answer': ...}}]")
    if hasattr(given, "column_names") and not hasattr(given, "__len__"):
        raise TaskError(f"{what}: a streaming data set has no end: give list(data.take(1000))")
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TaskError(f"{what}: {type(given).__name__} is not {FORMS}")
    return unpadded_rows(given)


def _is_frame(given: Any) -> bool:
    """Return True if it is a table of pandas."""
    return hasattr(given, "to_dict") and hasattr(given, "columns")


def plain_row(row: Any, where: str) -> dict[str, Any]:
    """A dict or a `Task` as a row of JSON."""
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
    """A value as JSON has it."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise TaskError(f"{where}: {value} can't be written as JSON: leave the column out or make it a text")
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
