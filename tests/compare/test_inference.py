"""Intervals and sample sizes against hand arithmetic, statsmodels, scipy and simulated tables."""

from __future__ import annotations

import math

import numpy as np
import pandas
import pytest
import scipy.stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm
from statsmodels.stats.power import TTestPower

from gxpo.compare import inference
from gxpo.compare.results import Estimate, Point


def test_crossed_spread_of_two_seeds_and_two_tasks() -> None:
    # Rows 1 0 and 2 3: mean 1.5, seeds .5 and 2.5, tasks 1.5 and 1.5, residuals .5 -.5 -.5 .5.
    # MS_seed = 2 x 2 = 4, MS_task = 0, MS_rest = 4 x .25 / 1 = 1; var = max(4, 1) / 4 + max(0 - 1, 0) / 4 = 1.
    # Degrees of freedom 4^2 / (4^2 / 1 + 0 + 1^2 / 1) = 16 / 17.
    actual = inference.crossed_spread([[1, 0], [2, 3]])
    assert (actual.mean, actual.by_seed, actual.by_task) == (1.5, 1.0, 0.0)
    assert actual.freedom == pytest.approx(16 / 17)


def test_crossed_spread_has_the_mean_squares_of_statsmodels() -> None:
    rng = np.random.default_rng(3)
    table = rng.normal(0, 1, (6, 1)) + rng.normal(0, 2, (1, 9)) + rng.normal(0, 1, (6, 9))
    seed, task = np.indices(table.shape)
    frame = pandas.DataFrame({"d": table.ravel(), "seed": seed.ravel(), "task": task.ravel()})
    ms = anova_lm(ols("d ~ C(seed) + C(task)", frame).fit())["mean_sq"]
    of_seed, of_task, rest = (float(ms[k]) for k in ("C(seed)", "C(task)", "Residual"))
    assert of_seed > rest and of_task > rest  # none is cut off at 0
    actual = inference.crossed_spread(table).estimate()
    variance = (of_seed + of_task - rest) / 54
    freedom = (of_seed + of_task - rest) ** 2 / (of_seed**2 / 5 + of_task**2 / 8 + rest**2 / 40)
    low, high = scipy.stats.t.interval(0.95, freedom, table.mean(), math.sqrt(variance))
    assert (actual.low, actual.high) == pytest.approx((low, high))
    assert actual.p == pytest.approx(2 * scipy.stats.t.sf(abs(table.mean()) / math.sqrt(variance), freedom))
    assert actual.by_seed**2 + actual.by_task**2 == pytest.approx(variance)
    assert actual.by_seed == pytest.approx(math.sqrt(of_seed / 54))


def test_seeds_and_tasks_that_do_not_vary() -> None:
    same = inference.crossed_spread(np.full((4, 5), 0.25)).estimate()
    assert (same.mean, same.low, same.high, same.p) == (0.25, 0.25, 0.25, 0.0)
    none = inference.crossed_spread(np.zeros((4, 5))).estimate()
    assert (none.mean, none.low, none.high, none.p) == (0.0, 0.0, 0.0, 1.0)
    assert none.holds_zero
    # Every seed the same, 8 tasks: the variance is that of tasks, as much as it ever will be.
    rows = np.tile([0, 0, 0, 0, 1, 1, 1, 1.0], (3, 1))
    alike = inference.crossed_spread(rows).estimate()
    assert alike.by_seed == 0
    assert alike.by_task == pytest.approx(math.sqrt(2 / 7 / 8))  # variance of four 0 and four 1 is 2/7


def test_one_seed_says_nothing_of_others() -> None:
    actual = inference.crossed_spread([[0.0, 1.0, 1.0, 0.0, 1.0]]).estimate()
    low, high = scipy.stats.t.interval(0.95, 4, 0.6, math.sqrt(0.3 / 5))  # variance 1.2 / 4
    assert (actual.low, actual.high) == pytest.approx((low, high))
    assert actual.n == 1 and math.isnan(actual.p)
    interval = inference.seed_interval([0.6])
    assert interval.mean == 0.6 and math.isnan(interval.low) and interval.holds_zero


def test_without_verdicts_seeds_alone() -> None:
    values = [0.1, 0.3, 0.2, 0.6]
    expected = scipy.stats.ttest_1samp(values, 0.0)
    interval = expected.confidence_interval(0.95)
    for actual in (inference.seed_interval(values), inference.crossed_spread(np.array(values)[:, None]).estimate()):
        assert (actual.low, actual.high, actual.p) == pytest.approx((interval.low, interval.high, expected.pvalue))
        assert math.isnan(actual.by_task) and actual.n == 4


@pytest.mark.parametrize("bad", [[], [[]], [1.0, 2.0], [[1.0, math.nan]]])
def test_what_is_no_table(bad: object) -> None:
    with pytest.raises(ValueError, match="table"):
        inference.crossed_spread(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(("seeds", "tasks"), [(3, 100), (5, 300)])
def test_coverage_on_simulated_verdicts(seeds: int, tasks: int) -> None:
    # Verdicts of a base with probabilities .15 to .65, of an arm .1 less to .2 more; seeds move each by .03.
    rng, n_covered, n = np.random.default_rng(5), 0, 500
    for _ in range(n):
        base = rng.uniform(0.15, 0.65, tasks)
        arm = base + rng.uniform(-0.1, 0.2, tasks)
        right = [(rng.random((seeds, tasks)) < p + rng.normal(0, 0.03, (seeds, 1))) * 1.0 for p in (arm, base)]
        actual = inference.crossed_spread(right[0] - right[1]).estimate()
        n_covered += actual.low <= 0.05 <= actual.high
    assert 0.925 <= n_covered / n <= 0.985


def points(*pairs: tuple[int, float]) -> list[Point]:
    return [Point(i, tokens, i, 0.0, value) for i, (tokens, value) in enumerate(pairs)]


def test_area_under_curve() -> None:
    curve = points((0, 0.2), (100, 0.6), (300, 1.0))
    # 100 tokens at .4 on average, then 100 from .6 to .8: (40 + 70) / 200
    assert inference.area_under_curve(curve, "tokens", 200) == pytest.approx(0.55)
    # ... 200 more at .8, then constant for 100 more: (40 + 160 + 100) / 400
    assert inference.area_under_curve(curve, "tokens", 400) == pytest.approx(0.75)
    assert inference.area_under_curve(points((0, 0.3)), "tokens", 50) == pytest.approx(0.3)
    assert inference.area_under_curve(points((0, 0.2), (50, math.nan), (100, 0.6)), "tokens", 100) == pytest.approx(0.4)
    with pytest.raises(ValueError, match="evaluation"):
        inference.area_under_curve([], "tokens", 10)
    with pytest.raises(ValueError, match="above 0"):
        inference.area_under_curve(curve, "updates", 0)


def test_interquartile_mean() -> None:
    # of eight runs the middle four: (2 + 3 + 4 + 5) / 4
    actual = inference.interquartile_mean([9.0, 0.0, 2.0, 3.0, -50.0, 4.0, 5.0, 70.0])
    assert actual.mean == 3.5 and actual.n == 8
    assert actual.low <= 3.5 <= actual.high
    # two settings: the middle four of the eight runs of both; resampled within each
    assert inference.interquartile_mean([[9.0, 0.0, 2.0, 3.0], [-50.0, 4.0, 5.0, 70.0]]).mean == 3.5
    assert inference.interquartile_mean([1.0, 2.0, 3.0]) == inference.interquartile_mean([1.0, 2.0, 3.0])
    one = inference.interquartile_mean([0.4])
    assert one.mean == 0.4 and math.isnan(one.low)


def test_bootstrap_of_the_mean_of_two_is_exact() -> None:
    # With two runs 0 and 1 nothing is cut: their resamples are 0, .5, .5, 1, so the percentiles are the ends.
    actual = inference.interquartile_mean([0.0, 1.0])
    assert (actual.mean, actual.low, actual.high) == (0.5, 0.0, 1.0)
    assert actual.spread == pytest.approx(math.sqrt(0.125), rel=0.03)  # of 0 .5 .5 1


def test_probability_of_improvement() -> None:
    # pairs: 1 > 0 yes, 1 > 1 half, 3 > 0 yes, 3 > 1 yes: 3.5 of 4
    actual = inference.probability_of_improvement([1.0, 3.0], [0.0, 1.0])
    assert actual.mean == 0.875
    x, y = [0.4, 0.5, 0.6, 0.7, 0.5], [0.3, 0.5, 0.55, 0.65]
    u = scipy.stats.mannwhitneyu(x, y).statistic
    assert inference.probability_of_improvement(x, y).mean == pytest.approx(u / 20)
    both = inference.probability_of_improvement([[1.0, 3.0], [0.0, 0.0]], [[0.0, 1.0], [1.0, 2.0]])
    assert both.mean == pytest.approx((0.875 + 0.0) / 2)
    apart = inference.probability_of_improvement([3.0, 4.0, 5.0], [0.0, 1.0, 2.0])
    assert (apart.low, apart.high) == (1.0, 1.0)


def test_mean_over_settings() -> None:
    # Differences of 3 seeds each: 1 2 3 (mean 2, variance 1 / 3) and 0 1 5 (mean 2, variance 7 / 3).
    # Mean 2, variance (1/3 + 7/3) / 4 = 2/3; degrees of freedom (8/3)^2 / ((1/3)^2 / 2 + (7/3)^2 / 2) = 64 / 25.
    actual = inference.mean_over_settings([inference.seed_spread([1, 2, 3]), inference.seed_spread([0, 1, 5])])
    low, high = scipy.stats.t.interval(0.95, 64 / 25, 2.0, math.sqrt(2 / 3))
    assert (actual.mean, actual.low, actual.high, actual.n) == pytest.approx((2.0, low, high, 3))
    welch = scipy.stats.ttest_ind([1, 2, 3], [-0.0, -1, -5], equal_var=False)  # the sum of both means, Welch's test
    assert actual.p == pytest.approx(welch.pvalue)


def test_holm() -> None:
    # ordered .01 x 3, .03 x 2, .04 x 1 not below the one before
    assert inference.holm([0.01, 0.04, math.nan, 0.03])[:2] == pytest.approx([0.03, 0.06])
    assert inference.holm([0.01, 0.04, math.nan, 0.03])[3] == pytest.approx(0.06)
    assert math.isnan(inference.holm([0.01, math.nan])[1])
    assert inference.holm([]) == []


@pytest.mark.parametrize(("difference", "sd"), [(0.03, 0.06), (-0.5, 1.0), (0.2, 1.0), (1.5, 1.0), (5.0, 1.0)])
def test_seeds_needed_are_those_of_statsmodels(difference: float, sd: float) -> None:
    expected = TTestPower().solve_power(abs(difference) / sd, power=0.8, alpha=0.05) if abs(difference) < 5 * sd else 2
    assert inference.seeds_needed(difference, sd) == max(3, math.ceil(expected))


@pytest.mark.parametrize("seeds", [2, 3, 5, 20, 200])
def test_resolvable_is_that_of_statsmodels(seeds: int) -> None:
    expected = 0.05 * TTestPower().solve_power(nobs=seeds, power=0.8, alpha=0.05)
    actual = inference.resolvable(0.05, seeds)
    assert actual == pytest.approx(expected, rel=1e-4)
    assert inference.seeds_needed(actual, 0.05) == max(3, seeds)


def test_power_without_anything_to_go_by() -> None:
    assert inference.seeds_needed(0.1, 0.0) == inference.FEWEST_SEEDS
    assert inference.resolvable(0.0, 5) == 0.0
    for difference, sd in ((0.0, 1.0), (math.nan, 1.0), (0.1, math.nan), (math.inf, 1.0), (1e-9, 1.0)):
        assert inference.seeds_needed(difference, sd) is None
    assert math.isnan(inference.resolvable(0.1, 1)) and math.isnan(inference.resolvable(math.nan, 5))


def test_tasks_alone_may_forbid_it() -> None:
    # With endless seeds .03 is found where the error of tasks is at most .03 / (1.95996 + .84162) = .01071.
    assert inference.seeds_needed(0.03, 0.06, task_error=0.0108) is None
    enough = inference.seeds_needed(0.03, 0.06, task_error=0.0106)
    assert enough is not None and enough > 1000
    assert inference.more_tasks(0.03, 0.02) == pytest.approx(2 * (0.02 / 0.010708) ** 2, rel=1e-3)
    assert inference.more_tasks(0.03, 0.001) == 1.0
    # half of the variance left to the seeds: then a number of seeds there is
    assert inference.seeds_needed(0.03, 0.06, task_error=0.02 / math.sqrt(inference.more_tasks(0.03, 0.02)))


def test_deviation_from_seed_to_seed() -> None:
    pilot = Estimate(0.05, -0.1, 0.2, 5, spread=0.05, by_seed=0.04, by_task=0.03)
    assert inference.seed_sd(pilot) == pytest.approx(0.04 * math.sqrt(5))
