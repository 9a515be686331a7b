"""Strict parser for untrusted JSON: whatever Python's parser would guess, round or crash on is a one-line error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

DEPTH = 64  # brackets within brackets
NUMBERS = frozenset({int, float, bool})


class Malformed(ValueError):
    """A text is not JSON, or JSON with an ambiguous or unrepresentable value; the message is one line."""


def parse(text: str | bytes | bytearray) -> Any:
    """Parse a JSON text.

    `Malformed` for invalid JSON or UTF-8, for an object with a duplicate key, for NaN, Infinity and numbers that no
    float holds, for half a surrogate pair, and for brackets nested deeper than `DEPTH`.

    >>> parse('{"reward": 0.5}')
    {'reward': 0.5}
    """
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        value = json.loads(
            text, parse_float=_finite, parse_constant=_not_a_number, object_pairs_hook=_object_of_distinct_keys
        )
    # Order matters: the other exceptions are, like Malformed, subclasses of ValueError.
    except Malformed:
        raise
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise Malformed(f"{error.msg}: line {error.lineno} column {error.colno}") from None
    except ValueError:  # Python refuses to convert longer ones
        raise Malformed("a whole number has more than 4300 digits") from None
    except RecursionError:
        raise Malformed(f"brackets are nested deeper than {DEPTH}") from None
    check_texts(value)
    return value


def check_texts(value: Any) -> None:
    """Raise `Malformed` if a text in a JSON value is not Unicode, or its brackets are nested deeper than `DEPTH`."""
    # A stack of its own instead of recursion: nested values from outside must not exhaust Python's.
    todo: list[tuple[Iterable[Any], int]] = [([value], 0)]
    while todo:
        items, depth = todo.pop()
        for item in items:
            if isinstance(item, str):
                _check_text(item)
                continue
            if isinstance(item, dict | list) and depth == DEPTH:
                raise Malformed(f"brackets are nested deeper than {DEPTH}")
            if isinstance(item, dict):
                for key in item:
                    _check_text(key)
                todo.append((item.values(), depth + 1))
            # Long lists of numbers, as token ids are, need no look at each item.
            elif isinstance(item, list) and not {*map(type, item)} <= NUMBERS:
                todo.append((item, depth + 1))


def _check_text(text: str) -> None:
    """Raise `Malformed` for a text that UTF-8 can't encode."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Malformed(f"a text has half a surrogate pair, \\u{ord(text[error.start]):04x}") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Malformed(f"the number {text[:40]} is too large")
    return value


def _not_a_number(text: str) -> float:
    raise Malformed(f"{text} is no JSON: a number is finite")


def _object_of_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise Malformed(f"the key {next(n for n in names if names.count(n) > 1)[:80]!r} stands twice in an object")
    return value
