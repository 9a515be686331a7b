"""Intervals and pass@k: pure functions of numbers, in float64; Student's quantiles by scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that at least one of `k` samples is right, from `c` right ones among `n`.

    1 - C(n-c, k) / C(n, k), the unbiased estimate (Chen et al. 2021, arXiv 2107.03374, eq. 1), as a product of factors
    of at most 1. ValueError unless 0 <= c <= n and 1 <= k <= n.

    >>> round(pass_at_k(n=4, c=2, k=2), 4)  # 1 of the 6 pairs has no right sample
    0.8333
    """
    if not 0 <= c <= n:
        raise ValueError(f"{c} right among {n} samples")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs between 1 and n={n} samples")
    if c > n - k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a share: (p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n), p = successes / n (Wilson 1927).

    Unlike p ± z·error it stays inside [0, 1] and is not a point at 0 or n successes. ValueError where n is 0.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes among {n}")
    z = NormalDist().inv_cdf(_upper(confidence))
    p, spread = successes / n, z * z / n
    middle = p + spread / 2
    half = z * math.sqrt((p * (1 - p) + spread / 4) / n)
    low = 0.0 if successes == 0 else (middle - half) / (1 + spread)
    high = 1.0 if successes == n else (middle + half) / (1 + spread)
    return low, high


def left_out(estimates: Sequence[float]) -> float:
    """Standard error of a figure from what it is without each of the n units: sqrt((n - 1) var), the jackknife's
    (Tukey 1958); nan for fewer than 2.

    >>> left_out([4.0, 3.5, 1.5])  # the mean of 1, 2 and 6, of which std / sqrt(3) is the error
    1.5275252316519468
    """
    n = len(estimates)
    if n < 2:
        return math.nan
    mean = math.fsum(estimates) / n
    return math.sqrt((n - 1) * math.fsum((x - mean) ** 2 for x in estimates) / n)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean: m ± t s / sqrt(n), s with one degree of freedom, t with n - 1.

    A single value gives (nan, nan): its spread is unknown. ValueError where there is none.
    """
    n, upper = len(values), _upper(confidence)
    if not n:
        raise ValueError("no values")
    mean = math.fsum(values) / n
    if n == 1:
        return math.nan, math.nan
    # imported here: runs whose evaluations draw one sample a task need no scipy, which takes 16 MB
    from scipy.special import stdtrit

    half = float(stdtrit(n - 1, upper)) * math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return mean - half, mean + half


def paired_interval(before: Sequence[float], after: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of after - before, pair by pair. ValueError where the lengths differ."""
    if len(before) != len(after):
        raise ValueError(f"{len(before)} values before, {len(after)} after")
    return mean_interval([b - a for a, b in zip(before, after, strict=True)], confidence)


def _upper(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    return (1 + confidence) / 2
