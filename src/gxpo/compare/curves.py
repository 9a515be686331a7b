"""Mean curves of an arm's runs over the budget, on a common grid."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gxpo.compare.conclude import usable_runs
from gxpo.compare.results import Budget, RunResult, Unit
from gxpo.training.statistics import mean_interval

POINT_FIGURES = ("start", "end", "best", "tokens", "updates", "seconds")
GRID = 40  # at most so many points of a mean curve


@dataclass(frozen=True)
class MeanCurve:
    """Mean of the measure over an arm's runs at common points of the budget.

    points  (spent, mean)
    band    (spent, low, high): 95% of the mean (Student's); empty for fewer than two runs
    """

    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]]


def mean_curve(runs: Sequence[RunResult], budget: Budget) -> MeanCurve:
    """Mean of the usable runs, interpolated linearly on a common grid.

    The grid begins where every run has been evaluated and ends at the budget, or where the shortest run ended.
    """
    # A curve needs a point: runs that were killed before their first evaluation have none.
    lines = [line for run in usable_runs(runs) if len((line := _line(run, budget.unit))[0])]
    if not lines:
        return MeanCurve([], [])
    # Only where all runs have values: a mean over fewer of them would jump where one ends.
    first, last = max(x[0] for x, _ in lines), min(budget.amount, *(x[-1] for x, _ in lines))
    # No finer than the evaluations, between which all is a straight line.
    size = min(GRID, int(statistics.median_high(len(x) for x, _ in lines)))
    grid = np.linspace(first, max(first, last), max(size, 1))
    values = np.stack([np.interp(grid, x, y) for x, y in lines])
    spans = [mean_interval(column.tolist()) for column in values.T] if len(lines) > 1 else []
    return MeanCurve(
        list(zip(grid.tolist(), values.mean(0).tolist(), strict=True)),
        [(x, *span) for x, span in zip(grid.tolist(), spans, strict=True)] if spans else [],
    )


def figure_or_nan(run: RunResult, figure: str) -> Any:
    """A figure of the run by name; nan for a figure of its evaluations if there are none."""
    return math.nan if not run.points and figure in POINT_FIGURES else getattr(run, figure)


def _line(run: RunResult, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
    finite_points = [p for p in run.points if math.isfinite(p.value) and math.isfinite(p.cost(unit))]
    return np.array([p.cost(unit) for p in finite_points]), np.array([p.value for p in finite_points])
