"""Mean curves over the budget: common grid, band, runs left out."""

from __future__ import annotations

import math

import pytest

from gxpo.compare.conclude import area
from gxpo.compare.curves import figure_or_nan, mean_curve
from gxpo.compare.results import Budget, Point, RunResult

BUDGET = Budget("tokens", 100)


def run(seed: int, *points: tuple[int, float], trouble: str = "") -> RunResult:
    points_of_curve = [Point(i, tokens, i, float(i), value) for i, (tokens, value) in enumerate(points)]
    return RunResult("grpo", seed, f"runs/{seed}", points_of_curve, trouble=trouble)


def test_runs_are_averaged_on_a_common_grid() -> None:
    # The first is at 0.5 in the middle, the second at 0.1; both end at 100 tokens.
    curve = mean_curve([run(0, (0, 0.0), (50, 0.5), (100, 1.0)), run(1, (0, 0.0), (100, 0.2))], BUDGET)
    assert [x for x, _ in curve.points] == [0, 50, 100]
    assert [y for _, y in curve.points] == pytest.approx([0.0, 0.3, 0.6])
    assert [x for x, _, _ in curve.band] == [0, 50, 100]


def test_failed_runs_are_not_drawn_and_one_run_has_no_band() -> None:
    curve = mean_curve([run(0, (0, 0.0), (100, 1.0)), run(1, (0, 5.0), (10, 5.0), trouble="killed")], BUDGET)
    assert list(curve.points) == [(0.0, 0.0), (100.0, 1.0)] and list(curve.band) == []
    assert list(mean_curve([], BUDGET).points) == []


def test_the_area_is_the_mean_over_the_budget() -> None:
    assert area(run(0, (0, 0.0), (100, 1.0)), BUDGET) == pytest.approx(0.5)
    assert math.isnan(area(run(0), BUDGET)) and math.isnan(area(run(0, (0, 1.0)), Budget("tokens", 0)))


def test_a_run_without_evaluations_has_no_figures_of_them() -> None:
    assert math.isnan(figure_or_nan(run(3), "end")) and figure_or_nan(run(3), "seed") == 3
