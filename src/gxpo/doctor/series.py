"""`Series`: one metric over a run with cached statistics; `Trend`: its change, with error and detectable gain."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CERTAIN = 3.0  # standard errors from which a change counts: some twenty series of a run are tested
POWER = 1.96 + 0.84  # standard errors of a gain for which a 95% interval excludes 0 in 80% of runs
SMALL = 0.03  # share of its level: a smaller change counts only if it is far beyond the noise
FRESH = 5  # steps that count as the beginning of a run, where it is long enough
NAN = float("nan")

# Names of series. NAME is a reward function or component; every name but `step` may also stand behind `eval/`.
NAMES: dict[str, str] = {
    "reward": "mean total reward of the rollouts made in the step",
    "reward_std": "spread of the total reward, as the trainer reports it (TRL 1.16: over all rollouts of the step)",
    "reward_max": "largest total reward of the step",
    "reward_min": "smallest total reward of the step",
    "success": "share of rollouts that the verifier accepts",
    "component/NAME": "mean of one reward function",
    "component_std/NAME": "deviation of one reward function over the step's rollouts",
    "zero_signal": "share of zero-signal groups",
    "zero_right": "share of groups that are all right",
    "zero_wrong": "share of groups that are all wrong",
    "groups": "groups in the step",
    "rollouts": "rollouts in the step",
    "unscored": "rollouts without a score",
    "advantage_mean": "mean advantage over tokens",
    "advantage_max": "largest advantage",
    "advantage_min": "smallest advantage",
    "loss": "value minimised",
    "grad_norm": "length of the gradient before clipping",
    "lr": "learning rate",
    "entropy": "mean entropy of the policy, nats",
    "kl": "divergence from the reference, nats a token",
    "kl_coef": "its coefficient in force",
    "approx_kl": "divergence from the policy at the start of the step, nats a token",
    "clip_fraction": "share of tokens that the ratio clip cuts",
    "clip_low": "share of tokens cut at the lower side",
    "clip_high": "share of tokens cut at the upper side",
    "ratio_max": "largest ratio of current to proximal policy",
    "weights_moved": "share of the weights that the step changed",
    "weights_crc": "checksum of the weights after the step",
    "empty_steps": "steps so far in which nothing moved",
    "nonfinite_steps": "optimiser steps so far that were skipped, gradient not finite",
    "optimiser_steps": "optimiser steps taken in the step",
    "length": "mean completion length, tokens",
    "length_max": "longest completion, tokens",
    "length_min": "shortest completion, tokens",
    "terminated_length": "mean length of completions that ended by themselves, tokens",
    "truncated": "share of completions cut at the length limit",
    "repetition": "share of completions that repeat themselves",
    "gap_mean": "mean |log-prob of learner - of sampler|, nats",
    "gap_max": "largest |log-prob of learner - of sampler|, nats",
    "gap_probability": "mean |probability of learner - of sampler|",
    "gap_pearson": "correlation of learner's and sampler's token probabilities",
    "gap_kl": "divergence of the sampler from the learner, nats a token",
    "gap_ratio": "mean importance ratio learner / sampler",
    "staleness_mean": "updates between sampling and training, mean",
    "staleness_max": "updates between sampling and training, largest",
    "tool_calls": "tool calls per completion",
    "tool_failures": "share of tool calls that fail",
    "malformed": "share of turns without a readable action",
    "illegal": "share of turns with an impossible action",
    "turns": "mean number of turns",
    "epoch": "passes over the data so far",
    "seconds": "duration of the step",
    "seconds_sampling": "of it sampling",
    "rollout_seconds": "mean duration of a rollout",
    "rollout_seconds_max": "longest duration of a rollout",
    "kept": "share of rollouts that the loss keeps",
    "kl_charge": "KL penalty that the paid reward has taken off, mean of a rollout",
    "eval/accuracy": "held-out accuracy",
    "eval/reward": "held-out mean reward",
    "eval/low": "lower end of the 95% interval of eval/accuracy",
    "eval/high": "upper end of the 95% interval of eval/accuracy",
    "eval/tasks": "held-out tasks",
    "eval/pool_accuracy": "accuracy on training tasks, measured as eval/accuracy",
}


@dataclass(frozen=True)
class Series:
    """One metric over the run.

    steps   [n] step numbers in the order of the file; a run that was resumed wrongly may go back
    values  [n] float64; nan where the trainer wrote a value that is not finite (a missing key is no entry at all)
    key     the trainer's own name, which findings quote

    The statistics below are of `column` and computed once, so the arrays are not to be changed after that.
    """

    steps: Floats
    values: Floats
    key: str

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def finite(self) -> Series:
        """Entries that are finite, in the order of the file."""
        is_finite = np.isfinite(self.values)
        return self if is_finite.all() else Series(self.steps[is_finite], self.values[is_finite], self.key)

    @cached_property
    def column(self) -> Series:
        """Finite entries in the order of their steps, read-only; a repeated step counts once, as last written."""
        finite = self.finite
        # nearly every log is in order: no dictionary then
        if len(finite) < 2 or (np.diff(finite.steps) > 0).all():
            return Series(_read_only(finite.steps), _read_only(finite.values), self.key)
        value_by_step = dict(zip(finite.steps.tolist(), finite.values.tolist(), strict=True))
        steps = sorted(value_by_step)
        return Series(_read_only(steps), _read_only([value_by_step[step] for step in steps]), self.key)

    @cached_property
    def trend(self) -> Trend | None:
        """Trend of the column; None below 6 steps."""
        return trend(self.column.values)

    @cached_property
    def mean(self) -> float:
        """Mean over the run; nan where there is nothing."""
        return _mean(self.column.values)

    @cached_property
    def first(self) -> float:
        """Mean over the first steps (`beginning` of them); nan where there is nothing."""
        values = self.column.values
        return _mean(values[: beginning(len(values))])

    @cached_property
    def start(self) -> tuple[float, str]:
        """Level that findings quote as the run's start, and its place in words: "in the first steps", or "at step 1"
        where the mean of the first steps would hide a change within them."""
        steps, values = self.column.steps, self.column.values
        # beyond what neighbours usually differ by: of a level with noise one step is no start
        usual = float(np.median(np.abs(np.diff(values)))) if len(values) > 1 else 0.0
        if abs(float(values[0]) - self.first) > max(0.4 * float(np.ptp(values)), 3 * usual):
            return float(values[0]), f"at step {steps[0]:.0f}"
        return self.first, "in the first steps"

    @property
    def start_text(self) -> str:
        """Start of the series as findings quote it: the level of the first steps, or of the first alone with its
        number."""
        level, place = self.start
        return f"{level:.3g}" if place == "in the first steps" else f"{level:.3g} {place}"

    @cached_property
    def last(self) -> float:
        """Mean over the last fifth of the steps, at least three; nan where there is nothing."""
        values = self.column.values
        return _mean(values[-max(3, len(values) // 5) :])

    @property
    def start_to_last(self) -> float:
        """Last level as a share of the start; nan where there is nothing or the start is 0."""
        return self.last / self.start[0] if len(self.column) and self.start[0] else NAN

    @cached_property
    def is_constant(self) -> bool:
        """True if there are several values and all are equal but for rounding."""
        values = self.column.values
        return len(values) > 1 and float(np.ptp(values)) <= 1e-9 * max(1.0, float(np.abs(values).max()))

    def quote(self, form: str, *, ends: bool = False) -> str:
        """Evidence: the series under the trainer's own key, first and last steps; "" where it has no value.

        ends  quote the first value and the last instead of the means of the first steps and the last
        """
        steps, values, key = self.column.steps, self.column.values, self.key
        if not len(values):
            return ""
        if len(values) == 1:
            return f"{key} = {values[0]:{form}} at step {steps[0]:.0f}, the only one logged"
        if self.is_constant:
            return f"{key} = {values[0]:{form}} in all {len(values)} logged steps"
        if len(values) <= FRESH:
            step_list = ", ".join(f"{s:.0f}" for s in steps)
            return f"{key} {', '.join(f'{v:{form}}' for v in values)} at steps {step_list}"
        if ends:
            return f"{key} {values[0]:{form}} at step {steps[0]:.0f}, {values[-1]:{form}} at step {steps[-1]:.0f}"
        level, place = self.start
        return f"{key} {level:{form}} {place}, {self.last:{form}} in the last (steps {steps[0]:.0f} to {steps[-1]:.0f})"


def beginning(n: int) -> int:
    """Number of steps that count as the beginning of a run of n: few, since later ones have learnt already.

    >>> [beginning(n) for n in (1, 8, 24, 40, 500)]
    [2, 2, 3, 5, 5]
    """
    return min(FRESH, max(2, n // 8))


def certain(n: int) -> float:
    """Standard errors from which a change of a series of n counts.

    They are estimated from n - 1 differences of neighbours, which are worth 2 (n - 1) / 3 independent ones: the first
    term of Student's quantile widens the bound.

    >>> [round(certain(n), 2) for n in (6, 20, 100)]
    [5.25, 3.59, 3.11]
    """
    return CERTAIN * (1 + (CERTAIN**2 + 1) / 4 / (2 * (n - 1) / 3))


EMPTY = Series(np.empty(0), np.empty(0), "")


def _read_only(values: Floats | list[float]) -> Floats:
    """View of values in one piece that can't be written to, since several checks share it."""
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else NAN


@dataclass(frozen=True)
class Trend:
    """Change of a series over a run.

    n       steps
    first   mean of the first steps (`beginning` of them)
    last    mean of the last fifth (at least 3 steps)
    change  total change of a least-squares line, slope x (n - 1)
    error   its standard error
    noise   deviation of single steps, sqrt(mean squared difference of neighbours / 2), which a trend does not enter
    best    largest mean of a window as long as that of `last`
    """

    n: int
    first: float
    last: float
    change: float
    error: float
    noise: float
    best: float
    ends_error: float

    @property
    def ends(self) -> float:
        """Last less first."""
        return self.last - self.first

    @property
    def certain(self) -> float:
        """Standard errors from which a change counts."""
        return certain(self.n)

    @property
    def may_rise(self) -> bool:
        """True if it rises by the bound of long runs: enough to excuse a run, too little to accuse a short one."""
        return self.change > CERTAIN * self.error or self.ends > CERTAIN * self.ends_error

    @property
    def rises(self) -> bool:
        return self.change > self.certain * self.error or self.ends > self.certain * self.ends_error

    @property
    def falls(self) -> bool:
        return -self.change > self.certain * self.error or -self.ends > self.certain * self.ends_error

    @property
    def is_past_best(self) -> bool:
        """True if a seventh of its best is lost, beyond its noise."""
        return self.best - self.last > max(CERTAIN * self.ends_error, 0.15 * abs(self.best))

    @property
    def detectable(self) -> float:
        """Least gain that 80% of runs as noisy as this one would have shown."""
        return POWER * self.error

    def __str__(self) -> str:
        low, high = self.change - 1.96 * self.error, self.change + 1.96 * self.error
        return f"{self.first:.3g} -> {self.last:.3g} (change {self.change:+.2g}, 95% {low:+.2g} to {high:+.2g})"


def trend(values: Floats) -> Trend | None:
    """Trend of a series in the order of its steps; None below 6 steps.

    >>> t = trend(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]))
    >>> t.change, t.first, t.last
    (5.0, 0.5, 4.0)
    """
    n = len(values)
    if n < 6:
        return None
    begin, end = beginning(n), max(3, n // 5)
    time = np.arange(n) - (n - 1) / 2
    slope = float(time @ values / (time @ time))
    # by neighbours, not by residuals of the line: a curve is no noise
    noise = float(np.sqrt(np.mean(np.diff(values) ** 2) / 2))
    windows = np.convolve(values, np.ones(end) / end, mode="valid")
    return Trend(
        n,
        float(values[:begin].mean()),
        float(values[-end:].mean()),
        slope * (n - 1),
        noise * (n - 1) / float(np.sqrt(time @ time)),
        noise,
        float(windows.max()),
        noise * float(np.sqrt(1 / begin + 1 / end)),
    )


def has_stopped(reward: Floats, held_out: Floats) -> bool:
    """True if in the second half of a run the reward does not rise, nor evaluations that are enough to tell."""
    late, late_held_out = (trend(values[len(values) // 2 :]) for values in (reward, held_out))
    return late is not None and not late.rises and (late_held_out is None or not late_held_out.rises)


def stationary(values: Floats) -> bool:
    """True if a series is one level plus independent noise: no trend, and neighbours differ as any two values do.

    The second test is von Neumann's ratio, sum of squared differences / sum of squares about the mean: 2 +- 2 / sqrt(n)
    for independent values, smaller where the level wanders. A trend of less than `SMALL` of the level counts from one
    and a half times as many standard errors on: counts and lengths are not normal.
    """
    line = trend(values)
    if line is None:
        return True
    level = float(np.abs(values).mean())
    spread = float(((values - values.mean()) ** 2).sum())
    # constant but for rounding: neighbours have no ratio to speak of
    if spread <= 1e-12 * max(1.0, level**2):
        return True
    bound = CERTAIN * (1.5 if max(abs(line.change), abs(line.ends)) < SMALL * level else 1.0)
    has_trend = abs(line.change) > bound * line.error or abs(line.ends) > bound * line.ends_error
    ratio = float((np.diff(values) ** 2).sum()) / spread
    return not has_trend and (2 - ratio) * np.sqrt(len(values)) / 2 < bound


def denominator(values: Floats, largest: int = 4096) -> int | None:
    """Smallest n of which all values are multiples of 1 / n; None above `most`.

    >>> denominator(np.array([0.25, 0.5, 0.375])), denominator(np.array([0.5772, 0.7071, 0.1416]))
    (8, None)
    """
    return next(
        (n for n in range(1, largest + 1) if float(np.abs(values * n - np.round(values * n)).max()) < 1e-4), None
    )


def number_of_tasks(accuracies: Floats) -> int | None:
    """Smallest number of tasks, 3 to 499, of which all accuracies are multiples of 1 / n; None if unclear.

    0.578125 and 0.59375 are multiples of 1/64. It takes three different accuracies.
    """
    if len(np.unique(accuracies)) < 3 or accuracies.min() < 0 or accuracies.max() > 1:
        return None
    for n in range(3, 1001):
        # accuracies are logged with four digits; from 500 tasks on these fit by chance
        if float(np.abs(accuracies * n - np.round(accuracies * n)).max()) < min(2e-3, 2e-4 * n):
            return n if n < 500 else None
    return None


def are_of_pairs(highest: Floats, lowest: Floats) -> bool:
    """True if the largest advantages and the sizes of the smallest are 1 / sqrt(2) wherever they are not 0: a group of
    two has a better and a worse answer, whose deviation is sqrt(2) times as large as their distance from the mean."""
    sizes = np.concatenate([highest[highest > 0], lowest[lowest > 0]])
    return len(highest) >= 10 and len(sizes) >= len(highest) and float(np.abs(sizes - 0.5**0.5).max()) < 1e-3
