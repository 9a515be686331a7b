"""Intervals, tests and sample sizes for arms over seeds and held-out tasks: pure functions of numbers, in float64.

Every random number comes from a generator with a fixed seed: the same runs give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gxpo.base.errors import need
from gxpo.compare.results import Estimate, Point, Unit

FEWEST_SEEDS = 3  # with fewer nothing is ranked, and none are planned
RESAMPLES = 5000
MOST_SEEDS = 1_000_000
POWER = 0.8


@dataclass(frozen=True)
class Spread:
    """A mean, the two parts of its variance, and the degrees of freedom of their sum.

    by_seed   variance of the mean from seed to seed, noise of single verdicts included: shrinks as 1 / seeds
    by_task   variance of the mean from held-out task to task: the same at any number of seeds; nan where unknown
    """

    mean: float
    by_seed: float
    by_task: float
    freedom: float
    seeds: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return math.sqrt(sum(part for part in (self.by_seed, self.by_task) if not math.isnan(part)))

    def estimate(self) -> Estimate:
        """Student's 95% interval of the mean, and its two-sided p against 0 (nan for one seed)."""
        from scipy.stats import t

        # One seed of one task: there is no spread to make an interval of.
        if math.isnan(self.freedom):
            return Estimate(self.mean, math.nan, math.nan, self.seeds)
        error = self.error
        half = float(t.ppf(0.975, self.freedom)) * error
        # All values equal: any mean but 0 is infinitely many errors away.
        ratio = abs(self.mean) / error if error > 0 else math.inf if self.mean else 0.0
        return Estimate(
            self.mean,
            self.mean - half,
            self.mean + half,
            self.seeds,
            spread=error,
            by_seed=math.sqrt(self.by_seed),
            by_task=math.sqrt(self.by_task),
            p=2 * float(t.sf(ratio, self.freedom)) if self.seeds > 1 else math.nan,
        )


def seed_spread(values: ArrayLike) -> Spread:
    """Mean of one number per seed, [S], with its variance from seed to seed; ValueError for no seeds."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not x.size:
        raise ValueError(f"values of seeds are one number each, and at least one; got shape {x.shape}")
    if x.size == 1:
        return Spread(float(x[0]), math.nan, math.nan, math.nan, 1)
    return Spread(math.fsum(x) / x.size, _variance(x) / x.size, math.nan, x.size - 1, x.size)


def crossed_spread(table: ArrayLike) -> Spread:
    """Mean of a table [S, T] of seeds by held-out tasks, both drawn at random and crossed.

        d[s, t] = mean + a[s] + b[t] + e[s, t]
        var(mean) = var(a) / S + var(e) / (S T)  +  var(b) / T
                  = max(MS_seed, MS_rest) / (S T)  +  max(MS_task - MS_rest, 0) / (S T)

    from the mean squares of the two-way table without repetition; a component estimated below 0 counts as 0, so the
    whole is never below what seeds alone, tasks alone or single verdicts alone leave. Degrees of freedom by
    Satterthwaite (1946): V^2 / sum(MS^2 / df) over the three mean squares, V = S T var(mean). They exceed S - 1 only as
    far as the table shows that seeds are not what varies (Hillis 2007 does the same for readers and cases).
    Source: generalizability theory, design p x i (Brennan 2001); readers by cases (Gallas, Bandos, Samuelson, Wagner
    2009). One seed: variance from task to task alone, freedom T - 1. One task: as `seed_spread`.
    ValueError unless the table is two-dimensional, not empty and finite.
    """
    d = np.asarray(table, dtype=np.float64)
    if d.ndim != 2 or not d.size or not np.isfinite(d).all():
        raise ValueError(f"a table [seeds, tasks] of finite numbers is needed; got shape {d.shape}")
    seeds, tasks = d.shape
    mean = math.fsum(d.ravel()) / d.size
    # A single task has no variance between tasks, a single seed none between seeds.
    if tasks == 1:
        return seed_spread(d[:, 0])
    if seeds == 1:
        return Spread(mean, 0.0, _variance(d[0]) / tasks, tasks - 1, 1)
    # Mean squares of the two-way table; the docstring's formulas from here on.
    by_seed, by_task = d.mean(axis=1), d.mean(axis=0)
    residual = d - by_seed[:, None] - by_task + mean
    ms_seed, ms_task = tasks * _variance(by_seed), seeds * _variance(by_task)
    ms_rest = float((residual**2).sum()) / ((seeds - 1) * (tasks - 1))
    seed_component, task_component = max(ms_seed, ms_rest), max(ms_task - ms_rest, 0.0)
    freedom_denominator = (ms_seed**2 + (ms_task**2 + ms_rest**2 / (seeds - 1)) * (seeds - 1) / (tasks - 1)) / (
        seeds - 1
    )
    freedom = (seed_component + task_component) ** 2 / freedom_denominator if freedom_denominator > 0 else seeds - 1
    return Spread(mean, seed_component / d.size, task_component / d.size, freedom, seeds)


def seed_interval(values: ArrayLike) -> Estimate:
    """Mean of one number per seed with Student's 95% interval; nan bounds for a single seed."""
    return seed_spread(values).estimate()


def area_under_curve(points: Sequence[Point], unit: Unit, amount: float) -> float:
    """Mean of the measure over the budget: trapezoids over (spent, value) from 0 to `amount`, divided by `amount`.

    Constant before the first and after the last evaluation, interpolated at `amount` where the run spent more; points
    whose value is nan are passed over. ValueError where none is left or `amount` is not positive.
    """
    from scipy.integrate import trapezoid

    # Sorted, since a curve may be given in any order, and interpolation assumes it.
    curve = sorted((p.cost(unit), p.value) for p in points if not math.isnan(p.value))
    if not curve or not amount > 0:
        raise ValueError(f"a curve needs an evaluation and a budget above 0; got {len(curve)} and {amount}")
    x, y = np.array(curve).T
    is_inside = (x > 0) & (x < amount)
    xs = np.concatenate([[0.0], x[is_inside], [amount]])
    ys = np.concatenate([[np.interp(0.0, x, y)], y[is_inside], [np.interp(amount, x, y)]])
    return float(trapezoid(ys, xs)) / amount


def interquartile_mean(values: ArrayLike) -> Estimate:
    """Mean of the middle half of runs, with a percentile bootstrap interval over runs.

    [S], or a list of settings with runs each: then the middle half of all runs of all settings, resampled within each
    setting. Source: rliable's `aggregate_iqm` (scipy's trim_mean, a quarter cut at each end, flattened; Agarwal et al.
    2021, arXiv 2108.13264). There is no interval where a setting has a single run.
    """
    strata = _strata(values)

    def middle(*samples: NDArray[Any], axis: int = -1) -> Any:
        from scipy.stats import trim_mean

        return trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)

    return _bootstrap(strata, middle)


def probability_of_improvement(arm: ArrayLike, base: ArrayLike) -> Estimate:
    """Probability that a run of `arm` is above a run of `base`, ties counted half: mean over all pairs, [S] and [S'].

    Lists of settings give the mean over settings. The percentile bootstrap resamples the runs of each arm in each
    setting by themselves; there is no interval where one has a single run. Source: rliable's
    `probability_of_improvement` (Mann-Whitney U / (S S')).
    """
    of_arm, of_base = _strata(arm), _strata(base)
    if len(of_arm) != len(of_base):
        raise ValueError(f"{len(of_arm)} settings of one arm, {len(of_base)} of the other")
    half = len(of_arm)

    def share_above(*samples: NDArray[Any], axis: int = -1) -> Any:
        del axis  # the last
        shares = []
        for x, y in zip(samples[:half], samples[half:], strict=True):
            difference = x[..., :, None] - y[..., None, :]
            shares.append(((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1)))
        return np.mean(shares, axis=0)

    return _bootstrap([*of_arm, *of_base], share_above)


def mean_over_settings(spreads: Sequence[Spread]) -> Estimate:
    """Unweighted mean of differences in several settings, with its 95% interval.

    The settings are these and no others; their runs are independent: var = sum(var_k) / K^2, degrees of freedom by
    Welch and Satterthwaite. n is the fewest seeds of a setting. No interval where a setting has a single seed.
    """
    if not spreads:
        raise ValueError("no settings")
    k = len(spreads)
    mean, seeds = math.fsum(s.mean for s in spreads) / k, min(s.seeds for s in spreads)
    # One seed in some setting leaves its variance unknown, and with it that of the mean.
    if seeds == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    variances = [s.error**2 for s in spreads]
    freedom_denominator = math.fsum(v**2 / s.freedom for v, s in zip(variances, spreads, strict=True))
    freedom = math.fsum(variances) ** 2 / freedom_denominator if freedom_denominator > 0 else seeds - 1
    by_task = math.fsum(0.0 if math.isnan(s.by_task) else s.by_task for s in spreads) / k**2
    return Spread(mean, math.fsum(s.by_seed for s in spreads) / k**2, by_task, freedom, seeds).estimate()


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for their number by Holm's method (1979); nan stay nan and count for nothing."""
    tested = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    out = [math.nan] * len(p_values)
    if tested:
        tests = need("statsmodels.stats.multitest", "compare")
        adjusted = tests.multipletests([p_values[i] for i in tested], method="holm")[1]
        for i, p in zip(tested, adjusted, strict=True):
            out[i] = float(p)
    return out


def power(difference: float, sd: float, seeds: int, task_error: float = 0.0, alpha: float = 0.05) -> float:
    """Probability that a two-sided paired t test at `alpha` finds a true `difference`, nan where that is unknown.

    sd          standard deviation from seed to seed of the paired difference
    task_error  standard error that held-out tasks leave at any number of seeds (`Estimate.by_task`)

    Noncentral t with difference / sqrt(sd^2 / n + task_error^2); its degrees of freedom are n - 1 over the square of
    the seeds' share of that variance. Without task_error it is the usual power of the paired t test.
    """
    from scipy.stats import nct, norm, t

    by_seed = sd * sd / seeds if seeds > 1 else math.nan
    variance = by_seed + task_error**2
    if not math.isfinite(variance) or not math.isfinite(difference):
        return math.nan
    if variance == 0:
        return 1.0 if difference else 0.0
    noncentral = abs(difference) / math.sqrt(variance)
    freedom = (seeds - 1) * (variance / by_seed) ** 2 if by_seed > 0 else math.inf
    # So many degrees of freedom make it a normal distribution.
    if freedom > 1e6:
        critical = float(norm.isf(alpha / 2))
        return float(norm.sf(critical - noncentral) + norm.cdf(-critical - noncentral))
    critical = float(t.isf(alpha / 2, freedom))
    other_side = nct.cdf(-critical, freedom, noncentral) if noncentral < 6 else 0.0  # below P(Z < -6); scipy has nan
    return float(nct.sf(critical, freedom, noncentral) + other_side)


def seeds_needed(difference: float, sd: float, task_error: float = 0.0, alpha: float = 0.05) -> int | None:
    """Fewest seeds (never below FEWEST_SEEDS) whose `power` to find `difference` is at least 0.8.

    None where no number of seeds has it: nothing to go by (a difference of 0, or nan), or held-out tasks alone leave
    too much (`more_tasks` says how many times as many it would take).
    """
    if not difference or not power(difference, sd, FEWEST_SEEDS, task_error, alpha) >= 0:
        return None
    # Double until the power is enough, then bisect: power grows with the number of seeds.
    low, high = FEWEST_SEEDS - 1, FEWEST_SEEDS
    least = POWER - 1e-6  # so that `resolvable` of n seeds needs n
    while not power(difference, sd, high, task_error, alpha) >= least:
        low, high = high, high * 2
        if high > MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        is_enough = power(difference, sd, middle, task_error, alpha) >= least
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def more_tasks(difference: float, task_error: float, alpha: float = 0.05) -> float:
    """Factor by which the number of held-out tasks must grow until they leave at most half of the variance with which
    `difference` is found with 80% power; 1 if there are enough, nan if the difference is 0 or nan.

    The largest standard error is |difference| / (z(1 - alpha/2) + z(0.8)); tasks leave 1 / sqrt(their number).
    """
    from scipy.stats import norm

    if not difference or not math.isfinite(difference) or not math.isfinite(task_error):
        return math.nan
    largest = abs(difference) / float(norm.isf(alpha / 2) + norm.isf(1 - POWER))
    return max(1.0, 2 * (task_error / largest) ** 2)


def resolvable(sd: float, seeds: int, task_error: float = 0.0, alpha: float = 0.05) -> float:
    """Smallest true difference that `seeds` find with 80% power; nan for fewer than 2 or where sd is unknown."""
    from scipy.optimize import brentq

    error = math.sqrt(sd * sd / seeds + task_error**2) if seeds > 1 else math.nan
    # No spread at all: every difference shows.
    if error == 0 or not math.isfinite(error):
        return 0.0 if error == 0 else math.nan
    upper = error
    # Power grows with the difference: bracket the one with 80%, then solve for it.
    while power(upper, sd, seeds, task_error, alpha) < POWER:
        upper *= 2
    # Relative to the error: differences may be of any scale.
    root: Any = brentq(lambda d: power(d, sd, seeds, task_error, alpha) - POWER, 0.0, upper, xtol=1e-9 * error)
    return float(root)


def seed_sd(estimate: Estimate) -> float:
    """Standard deviation from seed to seed behind an estimate: by_seed sqrt(n); nan for a single seed."""
    return estimate.by_seed * math.sqrt(estimate.n) if estimate.n > 1 else math.nan


def _variance(x: NDArray[np.float64]) -> float:
    return float(np.var(x, ddof=1))


def _strata(values: ArrayLike) -> list[NDArray[np.float64]]:
    rows = list(values)  # type: ignore[arg-type]  # a sequence of numbers or of sequences
    nested = bool(rows) and np.ndim(rows[0]) > 0
    strata = [np.asarray(r, dtype=np.float64) for r in (rows if nested else [rows])]
    if any(s.ndim != 1 or not s.size for s in strata):
        raise ValueError("every arm needs at least one run in every setting")
    return strata


def _bootstrap(samples: Sequence[NDArray[np.float64]], statistic: Any) -> Estimate:
    """95% percentile interval of `statistic(*samples, axis=-1)`, every sample resampled by itself."""
    from scipy import stats

    n, mean = min(s.size for s in samples), float(statistic(*samples, axis=-1))
    if n == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    bootstrap: Any = stats.bootstrap  # its `random_state` is called `rng` from scipy 1.15 on; it takes both
    result = bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        vectorized=True,
        method="percentile",
        # A fixed generator: the same runs give the same interval each time.
        random_state=np.random.default_rng(0),
    )
    low, high = result.confidence_interval
    return Estimate(mean, float(low), float(high), n, spread=float(result.standard_error))
