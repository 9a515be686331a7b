"""`Series` and `Trend`: columns, statistics, quotations, changes beyond noise."""

from __future__ import annotations

import numpy as np
import pytest

from gxpo.doctor import Series
from gxpo.doctor.series import EMPTY, stationary, trend


def test_a_repeated_step_counts_once_as_last_written():
    series = Series(np.array([1.0, 3.0, 2.0, 3.0]), np.array([0.1, 0.9, np.nan, 0.5]), "reward")
    assert series.column.steps.tolist() == [1.0, 3.0]
    assert series.column.values.tolist() == [0.1, 0.5]
    assert series.finite.values.tolist() == [0.1, 0.9, 0.5]
    assert len(series) == 4


def test_a_column_is_made_once_and_cannot_be_written_to():
    steps, values = np.array([[1.0, 2.0], [5.0, 6.0], [9.0, 10.0]]).T
    series = Series(steps, values, "kl")
    assert series.column is series.column
    assert series.column.values.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        series.column.values[0] = 0.0
    values[0] = 3.0  # the arrays of the caller stay as they were
    assert series.values[0] == 3.0


def test_means_of_the_run_its_beginning_and_its_end():
    series = Series(np.arange(20.0), np.arange(20.0), "length").column
    assert (series.mean, series.first, series.last) == (9.5, 0.5, 17.5)
    assert not series.is_constant
    assert series.trend is not None and series.trend.rises
    assert np.isnan(EMPTY.column.mean) and EMPTY.column.trend is None


@pytest.mark.parametrize(
    "values, ends, line",
    [
        ([], False, ""),
        ([0.5], False, "r = 0.5 at step 0, the only one logged"),
        ([0.5] * 3, False, "r = 0.5 in all 3 logged steps"),
        ([0.5, 1.0], False, "r 0.5, 1 at steps 0, 1"),
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], True, "r 0 at step 0, 5 at step 5"),
        ([2.0] * 5 + [3.0] * 5, False, "r 2 in the first steps, 3 in the last (steps 0 to 9)"),
        ([9.0] + [2.0] * 9, False, "r 9 at step 0, 2 in the last (steps 0 to 9)"),
    ],
)
def test_quote(values, ends, line):
    assert (
        Series(np.arange(float(len(values))), np.array(values, dtype=float), "r").column.quote(".3g", ends=ends) == line
    )


def test_trend_of_a_straight_line_and_of_a_level() -> None:
    line = trend(np.arange(20.0))
    assert line is not None
    assert line.change == pytest.approx(19.0)
    assert line.noise == pytest.approx(0.5**0.5)  # neighbours differ by 1
    assert line.rises and not line.falls
    level = np.array([0.0, 1.0] * 15)
    assert stationary(level)
    assert not stationary(np.linspace(0.0, 1.0, 30))


def test_the_start_is_one_level_for_all_evidence():
    """The first two of twelve steps; the first alone where the mean of both would hide a fall."""
    level = Series(np.arange(1.0, 13.0), np.array([2.0, 4.0] + [9.0] * 10), "r")
    assert level.start == (3.0, "in the first steps") and level.trend.first == level.first == 3.0
    fall = Series(np.arange(1.0, 13.0), np.array([9.0] + [1.0] * 11), "r")
    assert fall.start == (9.0, "at step 1")
