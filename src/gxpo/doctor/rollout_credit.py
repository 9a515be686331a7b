"""Reward columns of TRL's tables, told from logged numbers by the advantages, and the weights of the rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ALIKE = 0.9999  # cosine between advantages and centred rewards of a block
ZERO = 5e-3  # root mean square of a group's advantages below which it has none


def total(components: Floats, weights: Floats) -> Floats:
    """Weighted sum over the known components [n, k]; nan for a row without any."""
    is_known = np.isfinite(components)
    summed = np.where(is_known, components, 0.0) @ weights
    return np.where(is_known.any(axis=1), summed, np.nan)


def centred(values: Floats, group: NDArray[np.int64]) -> Floats:
    """Values minus their group's mean over known values; 0 for unknown ones."""
    is_known = np.isfinite(values)
    n = np.bincount(group, is_known)
    mean = np.bincount(group, np.where(is_known, values, 0.0)) / np.maximum(n, 1)
    return np.where(is_known, values - mean[group], 0.0)


def explains(score: Floats, advantage: Floats, group: NDArray[np.int64]) -> bool:
    """True if advantages are the centred scores times one number, of one sign, in 95% of the groups that have any."""
    # the factor differs from group to group (1 / deviation), so that groups are compared by cosine
    c, a = centred(score, group), np.nan_to_num(advantage)
    cc, aa, ca = np.bincount(group, c * c), np.bincount(group, a * a), np.bincount(group, c * a)
    live = aa > ZERO**2 * np.maximum(np.bincount(group), 1)
    if not live.any():
        return False
    cosine = ca[live] / np.maximum(np.sqrt(cc[live] * aa[live]), 1e-12)
    return bool(max(np.mean(cosine > ALIKE), np.mean(cosine < -ALIKE)) >= 0.95)


def reward_columns(
    names: Sequence[str], components: Floats, advantage: Floats, group: NDArray[np.int64]
) -> tuple[int, Floats | None]:
    """Count the leading columns that are reward functions; also return their weights, None if all are 1.

    Columns that a reward function logs come after the rewards. The longest leading stretch whose sum explains the
    advantages is the rewards. If no sum does, weights are fitted: a_i s = sum_k w_k c_ik in each group, c centred, s
    the group's deviation of the sum; negative weights are rejected.
    """
    k = len(names)
    ones = np.ones(k)
    # plain sums first, the longest first: a logged number that happens to be constant changes no sum
    for n in range(k, 0, -1):
        if explains(total(components[:, :n], ones[:n]), advantage, group):
            return n, None
    for n in range(k, 0, -1):
        # then the sum of rewards normalised one by one (`normalize_then_sum`)
        centred_rewards = [centred(components[:, j], group) for j in range(n)]
        scaled = [
            c / (np.sqrt(np.bincount(group, c * c) / np.maximum(np.bincount(group) - 1, 1)) + 1e-4)[group]
            for c in centred_rewards
        ]
        if n > 1 and explains(np.sum(scaled, axis=0), advantage, group):
            return n, None
    if k > 1 and (weights := _weights(components, advantage, group)) is not None:
        n_rewards = int(np.flatnonzero(weights > 1e-3)[-1]) + 1
        return n_rewards, weights[:n_rewards]
    return k, None


def _weights(components: Floats, advantage: Floats, group: NDArray[np.int64]) -> Floats | None:
    """Fit reward weights [k], the largest being 1, to advantages; None if none explain them."""
    c = np.stack([centred(components[:, j], group) for j in range(components.shape[1])], axis=1)
    a, size = np.nan_to_num(advantage), np.maximum(np.bincount(group) - 1, 1)
    w = np.ones(c.shape[1])
    # s depends on w, so that both are found by turns: a fixed point, scale aside
    for _ in range(100):
        s = np.sqrt(np.bincount(group, (c @ w) ** 2) / size)[group]
        w = np.linalg.lstsq(c, a * s, rcond=None)[0]
        if not np.abs(w).max() > 0:
            return None
        w = w / np.abs(w).max()
    # weights are typed by people: what is left of rounding is no weight
    w = np.where(np.abs(w) < 1e-3, 0.0, np.round(w, 4))
    good = (w >= 0).all() and explains(total(components, w), advantage, group)
    return w if good else None
