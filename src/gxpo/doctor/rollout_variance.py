"""Variance of scores within and between groups, and correlations within groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gxpo.doctor.rollout_credit import centred
from gxpo.doctor.rollouts import Rollouts
from gxpo.doctor.series import Floats

Ints = NDArray[np.int64]
EQUAL = 1e-9  # scores that differ by less are equal


@dataclass(frozen=True)
class Correlation:
    """r with its 95% interval and two-sided p; nan where a column does not vary within groups."""

    r: float
    low: float
    high: float
    p: float
    rows: int
    groups: int


def _unknown(rows: int, groups: int) -> Correlation:
    nan = float("nan")
    return Correlation(nan, nan, nan, nan, rows, groups)


def within_correlation(x: Floats, y: Floats, group: Ints) -> Correlation:
    """Correlation within groups, pooled: of x - (its group's mean) and y - (its group's mean).

    r = sum x'y' / sqrt(sum x'^2 sum y'^2) over the rows where both are known, in groups where both vary. With n rows in
    g groups t = r sqrt(d / (1 - r^2)), d = n - g - 1; the interval is tanh(artanh r +- 1.96 / sqrt(d - 1)).
    """
    known = np.isfinite(x) & np.isfinite(y) & (group >= 0)
    if not known.any():
        return _unknown(0, 0)
    _, at = np.unique(group[known], return_inverse=True)
    a, b = centred(x[known], at), centred(y[known], at)
    varies = (np.bincount(at, np.abs(a) > EQUAL) > 0) & (np.bincount(at, np.abs(b) > EQUAL) > 0)
    kept = varies[at]
    a, b = a[kept], b[kept]
    n, g = len(a), int(varies.sum())
    d = n - g - 1
    if d < 2:
        return _unknown(n, g)
    r = float(np.clip(a @ b / np.sqrt((a @ a) * (b @ b)), -1.0, 1.0))
    if abs(r) > 1 - 1e-12:
        return Correlation(r, r, r, 0.0, n, g)
    from scipy.special import betainc  # scipy.stats takes half a second to import

    p = float(betainc(d / 2, 0.5, 1 - r * r))  # of Student's t with d degrees of freedom, both sides
    half = 1.96 / np.sqrt(d - 1)
    return Correlation(r, float(np.tanh(np.arctanh(r) - half)), float(np.tanh(np.arctanh(r) + half)), p, n, g)


def variance_shares(r: Rollouts, weights: dict[str, float] | None = None) -> dict[str, float]:
    """Each component's share of the within-group variance of the score of the training rows.

    share_k = sum w_k c'_k s' / sum s'^2, with components c' and scores s' centred per group. The weights are those that
    are given; else 1, where the components then sum to the score; else the least-squares ones of s' = sum_k w_k c'_k.
    The shares sum to 1 where the score is such a sum (else to R^2); one is negative where the component works against
    the others. {} where the score does not vary within groups.
    """
    used = (r.group >= 0) & ~r.held_out & np.isfinite(r.score)
    if not used.any() or not r.components:
        return {}
    _, at = np.unique(r.group[used], return_inverse=True)
    score = centred(r.score[used], at)
    parts = np.stack([centred(v[used], at) for v in r.components.values()], axis=1)
    whole = float(score @ score)
    if whole <= EQUAL:
        return {}
    w = np.array([(weights or {}).get(n, 1.0) for n in r.components])
    if weights is None and np.abs(parts @ w - score).max() > 1e-6:
        w = np.linalg.lstsq(parts, score, rcond=None)[0]
    return {n: float(s) for n, s in zip(r.components, w * (parts.T @ score) / whole, strict=True)}
