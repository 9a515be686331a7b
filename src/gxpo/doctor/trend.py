"""`Trend`: whether a noisy series gains, with an interval, and the least gain that it could have shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gxpo.doctor.runlog import Floats

CERTAIN = 3.0  # standard errors from which a change counts: a run is asked about some twenty series
POWER = 1.96 + 0.84  # standard errors of a gain that a 95% interval excludes 0 for in 80% of runs


@dataclass(frozen=True)
class Trend:
    """Change of a series over a run.

    n       steps
    first   mean of the first steps (at most 5 of them: later ones have learnt already)
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
    def rises(self) -> bool:
        return self.change > CERTAIN * self.error or self.ends > CERTAIN * self.ends_error

    @property
    def falls(self) -> bool:
        return -self.change > CERTAIN * self.error or -self.ends > CERTAIN * self.ends_error

    @property
    def detectable(self) -> float:
        """Gain over the run that would have been seen in 80% of runs as noisy as this one."""
        return POWER * self.error

    def __str__(self) -> str:
        low, high = self.change - 1.96 * self.error, self.change + 1.96 * self.error
        return f"{self.first:.3g} -> {self.last:.3g} (change {self.change:+.2g}, 95% {low:+.2g} to {high:+.2g})"


def trend(values: Floats) -> Trend | None:
    """Of a series in the order of its steps; None below 6 steps.

    >>> t = trend(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]))
    >>> t.change, t.first, t.last
    (5.0, 0.5, 4.0)
    """
    n = len(values)
    if n < 6:
        return None
    begin, end = min(5, max(2, n // 8)), max(3, n // 5)
    time = np.arange(n) - (n - 1) / 2
    slope = float(time @ values / (time @ time))
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


SMALL = 0.03  # of its level: a change that does not count as one unless it is far beyond the noise


def stationary(values: Floats) -> bool:
    """Whether the series looks like one level with independent noise: no trend, and neighbours as different as any two.

    The second is von Neumann's ratio, sum of squared differences / sum of squares about the mean: 2 +- 2 / sqrt(n) for
    independent values, smaller where the level wanders. A trend of less than `SMALL` of the level counts from one and a
    half times as many standard errors on: counts and lengths are not normal.
    """
    found = trend(values)
    if found is None:
        return True
    level = float(np.abs(values).mean())
    spread = float(((values - values.mean()) ** 2).sum())
    if spread <= 1e-12 * max(1.0, level**2):
        return True
    bound = CERTAIN * (1.5 if max(abs(found.change), abs(found.ends)) < SMALL * level else 1.0)
    moved = abs(found.change) > bound * found.error or abs(found.ends) > bound * found.ends_error
    ratio = float((np.diff(values) ** 2).sum()) / spread
    return not moved and (2 - ratio) * np.sqrt(len(values)) / 2 < bound
