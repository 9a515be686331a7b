"""Against published numbers, enumeration and scipy."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gxpo.training.statistics import mean_interval, paired_interval, pass_at_k, wilson_interval


@pytest.mark.parametrize(("n", "c"), [(1, 0), (1, 1), (5, 2), (6, 0), (6, 5), (7, 3)])
def test_pass_at_k_is_the_share_of_draws_with_a_right_sample(n: int, c: int) -> None:
    right = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        draws = [any(draw) for draw in itertools.combinations(right, k)]
        assert pass_at_k(n, c, k) == pytest.approx(sum(draws) / len(draws), abs=1e-14)


def test_pass_at_k_edges() -> None:
    assert pass_at_k(10, 0, 10) == 0.0 and pass_at_k(10, 10, 1) == 1.0 and pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(200, 50, 1) == pytest.approx(0.25, abs=1e-15)
    n, c, k = 100_000, 3, 50  # binomials of this size are no floats
    assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12)
    for n, c, k in ((4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)):
        with pytest.raises(ValueError):
            pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_published(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)
    mirrored = wilson_interval(n - successes, n)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=5e-5)


@settings(deadline=None)
@given(st.integers(1, 5000), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_wilson_ends_are_where_the_score_test_rejects(n: int, data: st.DataObject, confidence: float) -> None:
    successes = data.draw(st.integers(0, n))
    low, high = wilson_interval(successes, n, confidence)
    assert 0 <= low <= successes / n <= high <= 1 and low < high
    z = stats.norm.ppf((1 + confidence) / 2)
    for p in (low, high):
        if 0 < p < 1:
            assert abs(successes / n - p) / math.sqrt(p * (1 - p) / n) == pytest.approx(z, rel=1e-6)


@pytest.mark.parametrize(("n", "t"), [(2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262), (30, 2.045)])  # printed tables
def test_mean_interval_by_the_table_of_t(n: int, t: float) -> None:
    values = [0.0] * (n - 1) + [float(n)]  # mean 1, sum of squares n (n - 1), so the error of the mean is 1
    assert mean_interval(values) == pytest.approx((1 - t, 1 + t), abs=5e-4)


def test_students_sleep_data() -> None:
    # Student 1908: hours of sleep gained by two drugs; R's t.test(paired = TRUE) gives -2.4598858 -0.7001142.
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    assert paired_interval(second, first) == pytest.approx((-2.4598858, -0.7001142), abs=5e-8)
    low, high = paired_interval(first, second)
    assert (low, high) == pytest.approx((0.7001142, 2.4598858), abs=5e-8)
    with pytest.raises(ValueError):
        paired_interval(first, second[:-1])


def test_mean_interval_edges() -> None:
    assert all(map(math.isnan, mean_interval([3.0])))
    assert mean_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    for values, confidence in (([], 0.95), ([1.0, 2.0], 1.0), ([1.0, 2.0], 95)):
        with pytest.raises(ValueError):
            mean_interval(values, confidence)
    with pytest.raises(ValueError):
        wilson_interval(0, 0)
