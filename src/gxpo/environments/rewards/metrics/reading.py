"""Numbers in answers and references, and the error for an answer that can't be read."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

NUMBER = re.compile(r"(?:(?<![\w.])[-+])?(?<![\w.])(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")


class Unreadable(ValueError):
    """The answer holds nothing of the kind that the metric compares."""


def numbers_in(given: Any) -> list[float]:
    """All finite numbers of a text, or of a list of numbers; digits within a word (`x1`, `box_2d`) are none.

    >>> numbers_in("box_2d: [1, -2.5, 3e2, .5]"), numbers_in("2-6 s"), numbers_in([1, 2])
    ([1.0, -2.5, 300.0, 0.5], [2.0, 6.0], [1.0, 2.0])
    """
    if isinstance(given, str):
        found = [float(x) for x in NUMBER.findall(given)]
    elif isinstance(given, Sequence):
        found = [float(x) for x in given if isinstance(x, (int, float)) and not isinstance(x, bool)]
    else:
        found = [float(given)] if isinstance(given, (int, float)) and not isinstance(given, bool) else []
    return [x for x in found if math.isfinite(x)]


def numbers_of(answer: str, count: Sequence[int], what: str) -> list[float]:
    """The numbers of an answer, as many as `count` allows; Unreadable otherwise, so that listing many earns nothing."""
    found = numbers_in(answer)
    if len(found) not in count:
        raise Unreadable(f"{len(found)} numbers where {what} has {' or '.join(map(str, count))}")
    return found
