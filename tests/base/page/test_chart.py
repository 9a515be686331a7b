"""The charts' geometry: points, bands, legend, ticks."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from gxpo.base.page.chart import svg_chart

SVG = "{http://www.w3.org/2000/svg}"


def chart(*args: object, **kwargs: object) -> ElementTree.Element:
    return ElementTree.fromstring(svg_chart(*args, **{"title": "T", "y_label": "unit", **kwargs}))  # type: ignore[arg-type]


def line(element: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (p.split(",") for p in element.attrib["points"].split())]


def texts(element: ElementTree.Element) -> list[str]:
    return [t.text or "" for t in element.iter(f"{SVG}text")]


def test_points_stand_where_the_ticks_say() -> None:
    root = chart({"a": [(0, 0.0), (5, 0.25), (10, 1.0)]})
    ticks = {t.text: t for t in root.iter(f"{SVG}text")}
    assert {"0.0", "0.2", "1.0", "0", "2", "10"} <= set(ticks)
    first, middle, last = line(next(root.iter(f"{SVG}polyline")))
    zero, one = (float(ticks[t].attrib["y"]) - 4 for t in ("0.0", "1.0"))
    assert first[1] == pytest.approx(zero, abs=0.11) and last[1] == pytest.approx(one, abs=0.11)
    assert middle[1] == pytest.approx(zero + 0.25 * (one - zero), abs=0.11) and one < zero
    assert first[0] == pytest.approx(float(ticks["0"].attrib["x"]), abs=0.11)
    assert last[0] == pytest.approx(float(ticks["10"].attrib["x"]), abs=0.11)
    assert middle[0] == pytest.approx((first[0] + last[0]) / 2, abs=0.11)


def test_seeds_and_a_control_with_a_legend() -> None:
    names = ["seed 0", "seed 1", "seed 2", "rewards <shuffled>"]
    series = {name: [(s, 0.1 * i + 0.01 * s) for s in range(0, 60, 10)] for i, name in enumerate(names)}
    bands = {"seed 1": [(s, 0.1, 0.3) for s in range(0, 60, 10)]}
    root = chart(series, bands=bands, dashed=["rewards <shuffled>"], y_range=(0, 1), width=640)
    assert [t for t in texts(root) if t in names] == names
    lines = list(root.iter(f"{SVG}polyline"))
    assert [e.attrib["class"] for e in lines] == ["l s0", "l s1", "l s2", "l s3 d"]
    assert [e.attrib["class"] for e in root.iter(f"{SVG}polygon")] == ["b f1"]
    assert "1.0" in texts(root)
    tips = [t.text for t in root.iter(f"{SVG}title")]
    assert len(tips) == 24 and "rewards <shuffled>, step 50: 0.8" in tips


def test_gaps_single_points_and_nothing() -> None:
    nan = math.nan
    root = chart({"a": [(1, 1.0), (2, 2.0), (3, nan), (4, 1.0), (5, nan), (6, math.inf)]})
    assert [len(line(e)) for e in root.iter(f"{SVG}polyline")] == [2, 1]
    assert len(list(root.iter(f"{SVG}circle"))) == 3
    for series in ({}, {"a": []}, {"a": [(1, nan)]}):
        assert "no values yet" in texts(chart(series))
    for y in (0.0, 5.0, -1e-9, 1e12):
        values = [v for e in chart({"a": [(3, y)]}).iter(f"{SVG}circle") for v in (e.attrib["cx"], e.attrib["cy"])]
        assert len(values) == 2 and all(0 < float(v) < 460 for v in values)


def test_a_long_series_is_thinned_but_keeps_its_extremes() -> None:
    points = [(s, math.sin(s / 500)) for s in range(20_000)]
    points[7001] = (7001, 9.0)
    root = chart({"a": points})
    drawn_line = line(next(root.iter(f"{SVG}polyline")))
    assert len(drawn_line) <= 1000 and [x for x, _ in drawn_line] == sorted(x for x, _ in drawn_line)
    assert min(y for _, y in drawn_line) == pytest.approx(
        44 + (10 - 9) / 12 * (260 - 36 - 44), abs=0.2
    )  # axis: -2 to 10
    assert not list(root.iter(f"{SVG}circle"))
