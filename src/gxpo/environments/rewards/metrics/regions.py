"""Metrics of places and counts: time intervals and boxes by IoU, points by box or distance, numbers by distance."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.metrics import Unreadable

Frame = Literal["pixels", "unit", "thousand"]
Size = Sequence[float] | None
NUMBER = re.compile(r"(?:(?<![\w.])[-+])?(?<![\w.])(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")


def numbers_in(value: Any) -> list[float]:
    """Finite numbers in a text or a list, in order; digits within a word (`x1`, `box_2d`) are none.

    >>> numbers_in("box_2d: [1, -2.5, 3e2, .5]"), numbers_in("2-6 s"), numbers_in([1, 2])
    ([1.0, -2.5, 300.0, 0.5], [2.0, 6.0], [1.0, 2.0])
    """
    if isinstance(value, str):
        numbers = [float(x) for x in NUMBER.findall(value)]
    elif isinstance(value, Sequence):
        numbers = [float(x) for x in value if isinstance(x, (int, float)) and not isinstance(x, bool)]
    else:
        numbers = [float(value)] if isinstance(value, (int, float)) and not isinstance(value, bool) else []
    return [x for x in numbers if math.isfinite(x)]


def numbers_of(answer: str, count: Sequence[int], label: str) -> list[float]:
    """Numbers of an answer, as many as `count` allows; else Unreadable, so that listing many earns nothing."""
    numbers = numbers_in(answer)
    if len(numbers) not in count:
        raise Unreadable(f"{len(numbers)} numbers where {label} has {' or '.join(map(str, count))}")
    return numbers


def _overlap(a: tuple[float, float], b: tuple[float, float]) -> float:
    return max(0.0, min(a[1], b[1]) - max(a[0], b[0]))


def _in_order(x: float, y: float) -> tuple[float, float]:
    return min(x, y), max(x, y)


def interval_iou(answer: str, reference: Any, *, ordered: bool = False) -> float:
    """Intersection over union of two intervals, each two numbers (begin and end, in any order); nan without one.

    ordered  an answer that ends before it begins is 0

    >>> interval_iou("from 2 to 6", [4, 8]), interval_iou("0-1", "5-6")
    (0.3333333333333333, 0.0)
    """
    a, b = numbers_of(answer, (2,), "an interval"), numbers_in(reference)
    if len(b) != 2:
        return math.nan
    if ordered and a[0] > a[1]:
        return 0.0
    interval, reference_interval = _in_order(*a), _in_order(*b)
    common = _overlap(interval, reference_interval)
    union = interval[1] - interval[0] + reference_interval[1] - reference_interval[0] - common
    return common / union if union > 0 else float(interval == reference_interval)


def in_pixels(numbers: Sequence[float], frame: Frame, size: Size, asker: str) -> list[float]:
    """Convert coordinates x, y, x, y, ... of a frame to pixels.

    frame  "pixels": as they are;   "unit": from 0 to 1 of width and height;   "thousand": from 0 to 1000 of them
    size   width and height of the picture in pixels; only "pixels" does without

    >>> in_pixels([500, 500], "thousand", (640, 480), "point_distance")
    [320.0, 240.0]
    """
    if frame == "pixels":
        return list(numbers)
    if frame not in ("unit", "thousand"):
        raise ConfigError(f"{asker}: frame is {frame!r}; it is one of pixels, unit, thousand")
    sides = _size(size, f"{asker}: frame={frame}")
    unit = 1 if frame == "unit" else 1000
    return [x * sides[i % 2] / unit for i, x in enumerate(numbers)]


def _size(size: Size, asker: str) -> tuple[float, float]:
    """Width and height of a picture; ConfigError where `size` is neither."""
    if not isinstance(size, Sequence) or len(size) != 2 or not all(isinstance(x, int | float) and x > 0 for x in size):
        raise ConfigError(f"{asker} needs size, the picture's width and height in pixels (info.size), not {size!r}")
    return size[0], size[1]


def box_iou(answer: str, reference: Any, *, frame: Frame = "pixels", size: Size = None) -> float:
    """Intersection over union of two boxes, each x, y, x, y of opposite corners; the reference is in pixels.

    frame, size  what the answer is measured in: see `in_pixels`

    >>> box_iou("[0, 0, 2, 2]", [1, 0, 3, 2]), box_iou("(0, 0, .5, 1)", [0, 0, 320, 480], frame="unit", size=[640, 480])
    (0.3333333333333333, 1.0)
    """
    a, b = in_pixels(numbers_of(answer, (4,), "a box"), frame, size, "box_iou"), numbers_in(reference)
    if len(b) != 4:
        return math.nan
    sides = [(_in_order(p[0], p[2]), _in_order(p[1], p[3])) for p in (a, b)]
    common = _overlap(sides[0][0], sides[1][0]) * _overlap(sides[0][1], sides[1][1])
    areas = [(x[1] - x[0]) * (y[1] - y[0]) for x, y in sides]
    union = sum(areas) - common
    return common / union if union > 0 else float(sides[0] == sides[1])


def point_in_box(
    answer: str, reference: Any, *, frame: Frame = "pixels", size: Size = None, typed: bool = False
) -> float:
    """Point-in-box score: 1 where a point, or an answered box's centre, lies in the reference, a box in pixels with its
    edges; else 0.

    frame, size, typed  see `point_distance`

    >>> point_in_box("click(15, 20)", [10, 10, 20, 20]), point_in_box("(21, 20)", [10, 10, 20, 20])
    (1.0, 0.0)
    """
    point = in_pixels(numbers_of(answer, (2, 4), "a point"), frame, size, "point_in_box")
    b = numbers_in(reference)
    if len(b) != 4:
        return math.nan
    if typed and _word(answer) != _word(str(reference)):
        return 0.0
    x, y = ((point[0] + point[-2]) / 2, (point[1] + point[-1]) / 2)
    across, down = _in_order(b[0], b[2]), _in_order(b[1], b[3])
    return float(across[0] <= x <= across[1] and down[0] <= y <= down[1])


def point_distance(
    answer: str,
    reference: Any,
    *,
    max_distance: float | Literal["diagonal"] = 50.0,
    frame: Frame = "pixels",
    size: Size = None,
    typed: bool = False,
) -> float:
    """Distance score of a point: max(0, 1 - distance / max_distance), from the reference, a point or a box (1 inside).

    Linear, as then one pixel nearer is worth as much anywhere within `max_distance`; an exponential pays next to
    nothing for the way from far to near, which is where a policy begins.

    max_distance  pixels at which nothing is earned; "diagonal": of the picture, which pays something everywhere
    frame, size  what the answer is measured in: see `in_pixels`; the reference is in pixels
    typed        the word before the numbers (`click(110, 100)`) must be the reference's, else 0

    >>> point_distance("click(110, 100)", "click(100, 100)", typed=True), point_distance("(160, 100)", [100, 100])
    (0.8, 0.0)
    >>> point_distance("(0, 0)", [3, 4], max_distance="diagonal", size=[6, 8])
    0.5
    """
    if max_distance == "diagonal":
        max_distance = math.hypot(*_size(size, "point_distance: max_distance=diagonal"))
    if isinstance(max_distance, str) or not max_distance > 0:
        raise ConfigError(f"point_distance: max_distance must be above 0 pixels, or diagonal, not {max_distance!r}")
    # The answer is read before the reference: an unreadable one is malformed even where nothing can be compared.
    x, y = in_pixels(numbers_of(answer, (2,), "a point"), frame, size, "point_distance")
    b = numbers_in(reference)
    if len(b) not in (2, 4):
        return math.nan
    if typed and _word(answer) != _word(str(reference)):
        return 0.0
    # A point is a box without extent; the distance is to the nearest point of the box.
    across, down = _in_order(b[0], b[-2]), _in_order(b[1], b[-1])
    dx, dy = x - min(max(x, across[0]), across[1]), y - min(max(y, down[0]), down[1])
    return max(0.0, 1 - math.hypot(dx, dy) / max_distance)


def count_distance(answer: str, reference: Any) -> float:
    """Count score max(0, 1 - |a - b| / max(|b|, 1)) of an answer's only number a and the reference's b: a miss by one
    costs less where there is more to count.

    >>> count_distance("I count 4.", 5), count_distance("2", 0), count_distance("0", 0)
    (0.8, 0.0, 1.0)
    """
    (a,), b = numbers_of(answer, (1,), "a count"), numbers_in(reference)
    return max(0.0, 1 - abs(a - b[0]) / max(abs(b[0]), 1.0)) if len(b) == 1 else math.nan


def _word(text: str) -> str:
    """Word before the first number of a text, bracket aside, in lower case."""
    head = text.strip().casefold()
    cut = next((i for i, c in enumerate(head) if c in "([{-+." or c.isdigit()), len(head))
    return head[:cut].strip(" :=")
