"""Cells of rows by dotted names: `reward_model.ground_truth` is what the column `reward_model` has under that key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gxpo.base.errors import did_you_mean

_NOTHING = object()
NAMES_SHOWN = 40  # names in a message, and characters of each


def cell(row: Any, name: str, default: Any = None) -> Any:
    """The cell of a name; `default` where there is none. A key that is the whole name wins, then the longest; numbers
    are places in lists.

    >>> row = {"reward_model": {"ground_truth": "7", "all": ["7", "VII"]}, "a.b": 1, "a": {"b": 2}}
    >>> cell(row, "reward_model.ground_truth"), cell(row, "reward_model.all.1"), cell(row, "a.b"), cell(row, "a.c", 0)
    ('7', 'VII', 1, 0)
    """
    value = _lookup(row, name.split("."))
    return default if value is _NOTHING else value


def has_cell(row: Any, name: str) -> bool:
    """Return True if a row has a cell of this name, null or not."""
    return _lookup(row, name.split(".")) is not _NOTHING


def _lookup(value: Any, parts: list[str]) -> Any:
    if not parts:
        return value
    if isinstance(value, (list, tuple)) and parts[0].isdecimal():
        # an index beyond the list is a missing cell, as is an unknown key: rows may differ in length
        place = int(parts[0])
        return _lookup(value[place], parts[1:]) if place < len(value) else _NOTHING
    if isinstance(value, Mapping):
        # longest first: a column may be called "a.b" beside a column "a" with a key "b"
        for n in range(len(parts), 0, -1):
            key = ".".join(parts[:n])
            if key in value and (inner_value := _lookup(value[key], parts[n:])) is not _NOTHING:
                return inner_value
    return _NOTHING


def lacking(rows: Iterable[Mapping[str, Any]], name: str) -> str:
    """The end of a message about a name that no row has: the names in its place that are close, or all."""
    rows = list(rows)
    parts = name.split(".")
    # the longest prefix that exists in some row is where the name went wrong
    for n in range(len(parts) - 1, 0, -1):
        home = ".".join(parts[:n])
        inner = [cell_value for row in rows if (cell_value := cell(row, home)) is not None]
        keys = list(
            dict.fromkeys(str(key) for cell_value in inner if isinstance(cell_value, Mapping) for key in cell_value)
        )
        if keys:
            close = did_you_mean(".".join(parts[n:]), keys)
            return close.replace("'", f"'{home}.", 1) or f"; {home!r} has {_some(keys)}"
        if inner:
            kind = {str: "a text", list: "a list", tuple: "a list"}.get(type(inner[0]), type(inner[0]).__name__)
            return f"; {home!r} is {kind}, without names in it"
    top_keys = list(dict.fromkeys(str(key) for row in rows for key in row))
    return did_you_mean(name, top_keys) or f"; there is {_some(top_keys)}"


def _some(names: Sequence[str]) -> str:
    """The first names, cut where they are long, and how many more there are."""
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return (", ".join(name[:NAMES_SHOWN] for name in names[:NAMES_SHOWN]) or "none") + more
