"""Remove the nulls that Arrow adds to nested values: a struct has every key of any row, null where a row had none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import need

Trim = Callable[[Any], Any]
Rows = list[dict[str, Any]]


def without_padding(rows: Rows, schema: Any) -> Rows:
    """Remove Arrow's padding from the rows of a table: keys of nested values that are null in some rows alone.

    schema  of the table. A key whose column is typed is left out where it is null; one of Arrow's type null, which is
            null in every row, was written so and stays. Columns themselves stay, null or not, and so do nulls in lists
    """
    trim = row_trim(schema)
    return rows if trim is None else list(map(trim, rows))


def row_trim(schema: Any) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Make the function that removes Arrow's padding from one row of a table; None if the schema has no structs."""
    trims = {name: trim for name, kind in zip(schema.names, schema.types, strict=True) if (trim := _trim_of(kind))}
    if not trims:
        return None
    return lambda row: {k: trims[k](v) if k in trims else v for k, v in row.items()}


def _trim_of(kind: Any) -> Trim | None:
    """Make the function that removes the padding from a value of this Arrow type; None if it holds no structs."""
    types: Any = need("pyarrow", "data").types
    if types.is_struct(kind):
        inner = {part.name: _trim_of(part.type) for part in kind}
        # a key of Arrow's type null was written as null in every row that has it: that is data
        explicit = {part.name for part in kind if types.is_null(part.type)}
        return lambda value: _struct(value, inner, explicit)
    # a map arrives as a list of pairs; its keys are data and never padded
    if types.is_map(kind):
        item = _trim_of(kind.item_type)
        return None if item is None else lambda value: _each(value, lambda pair: (pair[0], item(pair[1])))
    # lists of all sizes, and no dictionary encoding, whose values are plain
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
    """Statistics of one place in nested data: number of objects, (present, not null) of each key, places below."""

    objects: int = 0
    keys: dict[str, list[int]] = field(default_factory=dict)
    below: dict[str, _Place] = field(default_factory=dict)

    def note(self, value: Any) -> None:
        """Count a value and everything in it."""
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

    def trim(self, value: Any) -> Any:
        """Remove padding from a value: where all objects of a place have the same keys, nulls of a key others fill."""
        if isinstance(value, list):
            return [self.trim(x) for x in value]
        if not isinstance(value, Mapping):
            return value
        # a null of Arrow's comes with every key in every object; rows that differ in keys were not padded
        is_padded = all(present == self.objects for present, _ in self.keys.values())
        entries = {k: v for k, v in value.items() if v is not None or not is_padded or not self.keys[k][1]}
        return {k: self.below[k].trim(v) if k in self.below else v for k, v in entries.items()}


def without_even_padding(rows: Rows, columns: Sequence[str]) -> Rows:
    """Remove nulls that look like Arrow's padding from rows without a schema, as pandas gives them."""
    places = {name: _Place() for name in columns}
    for row in rows:
        for name, place in places.items():
            place.note(row.get(name))
    places_with_objects = {name: place for name, place in places.items() if place.objects}
    return (
        [{k: places_with_objects[k].trim(v) if k in places_with_objects else v for k, v in row.items()} for row in rows]
        if places_with_objects
        else rows
    )


def unpadded_rows(data: Any) -> Any:
    """Remove Arrow's padding from the rows of a `datasets.Dataset`; return anything else unchanged."""
    features = getattr(data, "features", None)
    schema = getattr(features, "arrow_schema", None)
    return data if schema is None else without_padding(list(data), schema)
