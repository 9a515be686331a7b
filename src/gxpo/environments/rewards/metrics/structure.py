"""JSON metric: shares of an answer that parses, has the keys, the right types and the right values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.environments.rewards.metrics import Unreadable
from gxpo.environments.rewards.metrics.schemas import fits, read

FENCE = "```"
OPENING = re.compile(r"(?:json)?[^\S\n]*\n", re.IGNORECASE)  # what may follow a fence on its line
WEIGHTS: Mapping[str, float] = {"parse": 0.2, "keys": 0.3, "types": 0.2, "values": 0.3}
ABSENT = object()


def parse_json(text: str) -> Any:
    """Parse a text as JSON, or its one fenced block; Unreadable where that fails."""
    try:
        return json.loads(strip_fence(text), parse_float=_finite, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Unreadable("no JSON") from error


def strip_fence(text: str) -> str:
    """Text inside of a fenced block that is all of the text (``` or ```json); the whole text without one.

    >>> strip_fence("```json\\n[1]\\n``` "), strip_fence("[1]")
    ('[1]', '[1]')
    """
    body = text.strip()
    if not (len(body) > 2 * len(FENCE) and body.startswith(FENCE) and body.endswith(FENCE)):
        return text
    inside = body[len(FENCE) : -len(FENCE)]
    opening = OPENING.match(inside)
    return text if opening is None else inside[opening.end() :].strip()


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Leaf values of nested objects by path of keys; a list and an empty object are leaves.

    >>> leaves({"a": 1, "b": {"c": [2]}})
    {('a',): 1, ('b', 'c'): [2]}
    """
    if not isinstance(value, Mapping) or (not value and path):
        return {path: value}
    return {p: x for key, inner in value.items() for p, x in leaves(inner, (*path, str(key))).items()}


def _properties(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Schemas of nested properties by path of keys: those that are required, or all where none is."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return {path: schema} if path else {}
    required = schema.get("required")
    keys = [key for key in required if key in properties] if isinstance(required, list) else []
    keys = keys or list(properties)
    schema_by_path = {}
    for key in keys:
        # A property without a schema may have any value.
        inner = properties[key] if isinstance(properties[key], Mapping) else {}
        schema_by_path |= _properties(inner, (*path, key))
    return schema_by_path


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    """Value at a path of keys; ABSENT where there is none."""
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return ABSENT
        value = value[key]
    return value


def kind(value: Any) -> str:
    """Name of a value's JSON type; integers are "number"."""
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "boolean"), ((int, float), "number"), (str, "string"), (Mapping, "object"), (list, "array"),
    )  # fmt: skip
    return next((name for types, name in names if isinstance(value, types)), "null")


def same(a: Any, b: Any) -> bool:
    """Equality of JSON values: true is not 1, 1 is 1.0.

    >>> same([1, {"a": True}], [1.0, {"a": True}]), same([1], [True])
    (True, False)
    """
    if kind(a) != kind(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


def json_schema(
    answer: str,
    reference: Any,
    *,
    schema: Mapping[str, Any] | str | None = None,
    weights: Mapping[str, float] = WEIGHTS,
) -> float:
    """JSON score: weighted mean of parse, keys, types and values, shares of the requested keys.

    Only the weights that apply count.

    answer     JSON, alone or in one fenced block; any other text can't be read
    reference  an object, or JSON of one: its keys, types and values are asked. None: there are no values to compare
    schema     JSON Schema, or JSON of one, whose required properties (all, where none is) are the keys, and which says
               what type fits, with all that a property may ask (enum, minimum, pattern): by jsonschema. Nothing that it
               refers to is retrieved (see `gxpo.environments.rewards.metrics.schemas`)
    weights    of parse, keys, types, values

    Keys of nested objects are paths. An answer of another kind than an object has no keys. Keys that nobody asked for
    cost nothing. nan with neither reference nor schema.

    >>> json_schema('{"a": 1, "b": "x"}', '{"a": 1, "b": "y", "c": 2}')  # .2 + .3 2/3 + .2 2/3 + .3 1/3
    0.6333333333333333
    """
    for name in weights:
        if name not in WEIGHTS:
            raise ConfigError(f"json_schema: weights has no {name!r}{did_you_mean(name, WEIGHTS)}")
    # The requested keys are the schema's, else those of the reference.
    document, schema = parse_json(answer), read(schema)
    reference_document = json.loads(reference) if isinstance(reference, str) else reference
    values = leaves(reference_document) if isinstance(reference_document, Mapping) and reference_document else {}
    spec_by_path = _properties(schema) if isinstance(schema, Mapping) else values
    if not spec_by_path:
        return math.nan
    fits_part = fits(schema) if isinstance(schema, Mapping) else None
    value_by_path = {path: value_at(document, path) for path in spec_by_path}
    present_values = {path: x for path, x in value_by_path.items() if x is not ABSENT}
    has_right_type = [
        fits_part(x, spec_by_path[p]) if fits_part else kind(x) == kind(values[p]) for p, x in present_values.items()
    ]
    # A key that is missing counts as a wrong type and a wrong value too, so that leaving it out never pays.
    shares = {
        "parse": 1.0,
        "keys": len(present_values) / len(spec_by_path),
        "types": sum(has_right_type) / len(spec_by_path),
    }
    if values:
        shares["values"] = sum(same(value_at(document, path), x) for path, x in values.items()) / len(values)
    total = sum(weights.get(name, 0.0) for name in shares)
    return sum(weights.get(name, 0.0) * share for name, share in shares.items()) / total if total > 0 else math.nan
