"""Metrics of places and counts: intervals, boxes, points and numbers."""

from __future__ import annotations

import math

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.metrics import Unreadable
from gxpo.environments.rewards.metrics.regions import (
    box_iou,
    count_distance,
    interval_iou,
    point_distance,
    point_in_box,
)

close = lambda x: pytest.approx(x, abs=1e-6)  # noqa: E731


# ---------------------------------------------------------------- places
def test_intervals_and_boxes():
    assert interval_iou("from 2 to 6", [4, 8]) == close(2 / 6)
    assert interval_iou("0-1", "5-6") == 0.0 and interval_iou("6, 2", "2 6") == 1.0
    assert box_iou("0 0 2 2", [1, 0, 3, 2]) == close(2 / 6)
    assert box_iou("2 2 0 0", [0, 0, 2, 2]) == 1.0 and box_iou("0 0 1 1", [5, 5, 6, 6]) == 0.0
    assert math.isnan(interval_iou("1 2", "soon"))
    for text in ("2", "1 2 3", "here"):
        with pytest.raises(Unreadable):
            interval_iou(text, [0, 1])


def test_frames_of_a_picture():
    # half of 640 and of 480
    for text, frame in (("(320, 240)", "pixels"), ("(0.5, 0.5)", "unit"), ("(500, 500)", "thousand")):
        assert point_distance(text, [320, 240], frame=frame, size=[640, 480]) == close(1.0)
    assert box_iou("0 0 500 1000", [0, 0, 320, 480], frame="thousand", size=(640, 480)) == close(1.0)
    with pytest.raises(ConfigError, match="needs size"):
        box_iou("0 0 1 1", [0, 0, 1, 1], frame="unit")
    with pytest.raises(ConfigError, match="frame is 'percent'"):
        box_iou("0 0 1 1", [0, 0, 1, 1], frame="percent")  # type: ignore[arg-type]


def test_distance_of_points():
    assert point_distance("(110, 100)", [100, 100]) == close(0.8) and point_distance("160 100", [100, 100]) == 0.0
    # 3-4-5 from the corner of a box; inside it all is 1
    assert point_distance("13 24", [0, 0, 10, 20]) == close(0.9) and point_distance("5 5", [0, 0, 10, 20]) == 1.0
    assert point_distance("click(110, 100)", "click(100, 100)", typed=True) == close(0.8)
    assert point_distance("type(110, 100)", "click(100, 100)", typed=True) == 0.0


def test_distance_by_the_diagonal():
    # 3-4-5 of a picture whose diagonal is 10, and 10 of 10
    assert point_distance("3 4", [0, 0], max_distance="diagonal", size=[6, 8]) == close(0.5)
    assert point_distance("6 8", [0, 0], max_distance="diagonal", size=(6, 8)) == close(0.0)
    # (.5, .5) is (3, 4) in pixels
    assert point_distance("(.5, .5)", [0, 0], max_distance="diagonal", frame="unit", size=[6, 8]) == close(0.5)
    for size in (None, [6], [6, 0], "68"):
        with pytest.raises(ConfigError, match="needs size"):
            point_distance("3 4", [0, 0], max_distance="diagonal", size=size)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="above 0 pixels, or diagonal, not 'width'"):
        point_distance("3 4", [0, 0], max_distance="width")  # type: ignore[arg-type]


def test_points_in_boxes():
    box = [10, 10, 20, 30]
    inside = {"10 10": 1, "20 30": 1, "click(15, 20)": 1, "9.9 20": 0, "15 30.1": 0, "0 0 30 40": 1, "0 0 10 10": 0}
    assert {text: point_in_box(text, box) for text in inside} == inside
    assert point_in_box("15 20", [20, 30, 10, 10]) == 1.0  # corners in any order
    # a quarter of 640 and a half of 480
    assert point_in_box("[250, 500]", [160, 240, 161, 241], frame="thousand", size=[640, 480]) == 1.0
    assert point_in_box("250 500", [160, 240, 161, 241]) == 0.0
    assert point_in_box("type(15, 20)", "click(10, 10, 20, 30)", typed=True) == 0.0
    assert math.isnan(point_in_box("1 2", [1, 2]))
    for text in ("15", "15 20, 15 21, 15 22", "in the middle"):
        with pytest.raises(Unreadable):
            point_in_box(text, box)


def test_distance_of_counts():
    assert count_distance("4 sheep", 5) == close(0.8) and count_distance("5.0", "5") == 1.0
    assert count_distance("11", 5) == 0.0 and count_distance("-1", 5) == 0.0
    assert count_distance("1", 0) == 0.0 and count_distance("0.5", 0) == close(0.5) and count_distance("-3", -4) == 0.75
    assert math.isnan(count_distance("3", "many")) and math.isnan(count_distance("3", None))
    for text in ("3 or 4", "some", "1e999", "nan"):
        with pytest.raises(Unreadable):
            count_distance(text, 3)


def test_degenerate_boxes():
    # a line and a point have no area: 0 beside any box, 1 beside themselves
    assert box_iou("0 0 0 2", [0, 0, 2, 2]) == 0.0 and box_iou("1 1 1 1", [0, 0, 2, 2]) == 0.0
    assert box_iou("1 1 1 1", [1, 1, 1, 1]) == 1.0 and box_iou("1 1 1 2", [1, 1, 1, 1]) == 0.0
    # x2 < x1 alone: the corners (2, 0) and (0, 2) span the box of (0, 0) and (2, 2)
    assert box_iou("2 0 0 2", [0, 0, 2, 2]) == 1.0
    # outside of the picture: 2 of 2 + 4 pixels are common to [-1, 0, 2, 2] and [0, 0, 1, 2]
    assert box_iou("-1 0 2 2", [0, 0, 1, 2]) == close(2 / 6)


@pytest.mark.parametrize(
    "text", ["nan 0 2 2", "0 0 1e999 2", "0 0 inf 2", "0 0 2 2; 0 0 2 2", "[[0, 0, 2, 2], [1]]", ""]
)
def test_a_box_is_four_finite_numbers(text):
    with pytest.raises(Unreadable):
        box_iou(text, [0, 0, 2, 2])


HUGE = ["0 0 1e308 1e308", "-1e308 0 1e308 0", "-1e308 -1e308 1e308 1e308", "1e308 1e308 1e308 1e308"]


@pytest.mark.parametrize("text", HUGE)
def test_huge_numbers_earn_nothing(text):
    assert box_iou(text, [0, 0, 2, 2]) == 0.0
    assert box_iou(text, [0, 0, 2, 2], frame="thousand", size=[640, 480]) == 0.0
    x = text.split()[2]
    assert point_distance(f"{x} -1e308", [0, 0], frame="thousand", size=[640, 480]) == 0.0
    assert interval_iou(f"-1e308 {x}", [0, 1]) == 0.0 and count_distance(x, 3) == 0.0
