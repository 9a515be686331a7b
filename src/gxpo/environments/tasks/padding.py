"""Nulls that Arrow adds to nested values: a struct has every key that any row has, and null where a row had none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import need

Trim = Callable[[Any], Any]
Rows = list[dict[str, Any]]


def without_padding(rows: Rows, schema: Any) -> Rows:
    """Rows of an Arrow table as they were written: without keys of nested values that are null only here.

    schema  of the table. A key whose column is typed is left out where it is null; one of Arrow's type null, which is
            null in every row, was written so and stays. Columns themselves stay, null or not, and so do nulls in lists
    """
    trim = row_trim(schema)
    return rows if trim is None else list(map(trim, rows))


def row_trim(schema: Any) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Return the function that takes Arrow's padding out of one row of a table; None where there can be none."""
    trims = {name: trim for name, kind in zip(schema.names, schema.types, strict=True) if (trim := _trim_of(kind))}
    if not trims:
        return None
    return lambda row: {k: trims[k](v) if k in trims else v for k, v in row.items()}


def _trim_of(kind: Any) -> Trim | None:
    """Function that takes the padding out of a value of this type of Arrow; None where there can be none."""
    types: Any = need("pyarrow", "data").types
    if types.is_struct(kind):
        inner = {part.name: _trim_of(part.type) for part in kind}
        explicit = {part.name for part in kind if types.is_null(part.type)}
        return lambda value: _struct(value, inner, explicit)
    if types.is_map(kind):
        item = _trim_of(kind.item_type)
        return None if item is None else lambda value: _each(value, lambda pair: (pair[0], item(pair[1])))
    if hasattr(kind, "value_type") and not types.is_dictionary(kind):
        item = _trim_of(kind.value_type)
        return None if item is None else lambda value: _each(value, item)
    return None


def _struct(value: Any, inner: Mapping[str, Trim | None], explicit: set[str]) -> Any:
    if not isinstance(value, Mapping):  # a picture, for one, that the data set has decoded
        return value
    present = {k: v for k, v in value.items() if v is not None or k in explicit or k not in inner}
    return {k: trim(v) if (trim := inner.get(k)) else v for k, v in present.items()}


def _each(value: Any, trim: Trim) -> Any:
    return [trim(x) for x in value] if isinstance(value, list | tuple) else value


# ---------------------------------------------------------------- tables without a schema
@dataclass
class _Place:
    """Values of one place of nested data: how many objects, their keys with (present, not null), what lies below."""

    objects: int = 0
    keys: dict[str, list[int]] = field(default_factory=dict)
    below: dict[str, _Place] = field(default_factory=dict)

    def note(self, value: Any) -> None:
        """Count a value and all that it holds."""
        if isinstance(value, Mapping):
            self.objects += 1
            for key, inner in value.items():
                counts = self.keys.setdefault(key, [0, 0])
                counts[0] += 1
                counts[1] += inner is not None
                if isinstance(inner, Mapping | list):
                    self.below.setdefault(key, _Place()).note(inner)
        elif isinstance(value, list):
            for inner in value:
                self.note(inner)

    def trimmed(self, value: Any) -> Any:
        """The value without padding: in a place all of whose objects have all keys, nulls of a key that others fill."""
        if isinstance(value, list):
            return [self.trimmed(x) for x in value]
        if not isinstance(value, Mapping):
            return value
        padded = all(present == self.objects for present, _ in self.keys.values())
        entries = {k: v for k, v in value.items() if v is not None or not padded or not self.keys[k][1]}
        return {k: self.below[k].trimmed(v) if k in self.below else v for k, v in entries.items()}


def without_even_padding(rows: Rows, columns: Sequence[str]) -> Rows:
    """Rows of a table of which no schema is known, as those of pandas, without what looks like Arrow's padding."""
    places = {name: _Place() for name in columns}
    for row in rows:
        for name, place in places.items():
            place.note(row.get(name))
    nested = {name: place for name, place in places.items() if place.objects}
    return [{k: nested[k].trimmed(v) if k in nested else v for k, v in row.items()} for row in rows] if nested else rows


def unpadded_rows(data: Any) -> Any:
    """The rows of a `datasets.Dataset` without Arrow's padding; anything else as it is."""
    features = getattr(data, "features", None)
    schema = getattr(features, "arrow_schema", None)
    return data if schema is None else without_padding(list(data), schema)
