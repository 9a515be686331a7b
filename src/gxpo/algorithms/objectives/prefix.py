"""Running statistics over a trajectory's earlier (or later) tokens: sum, minimum, mean, Kalman filter.

Rows of one owner are adjacent, in order of time, as tokens are in path order. All by doubling: after k rounds a row
holds what is less than 2^k rows away, so that log2 of the longest run's length rounds are enough; a row's result
depends on the rows of its own run and on nothing else in the batch. Detached, float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def places(owner: Tensor) -> Tensor:
    """Position of each row in its run, from 0, [n] int64.

    >>> places(torch.tensor([3, 3, 3, 7, 7])).tolist()
    [0, 1, 2, 0, 1]
    """
    rows = torch.arange(len(owner))
    first = torch.ones(len(owner), dtype=torch.bool)
    first[1:] = owner[1:] != owner[:-1]
    return rows - torch.where(first, rows, 0).cummax(0).values if len(owner) else rows


@torch.no_grad()
def recursion(x: Tensor, coefficient: float | Tensor, owner: Tensor, *, reverse: bool = False) -> Tensor:
    """Linear recursion y_t = x_t + coefficient_t y_(t-1) within each run, y = x at its first row; [n] float64.

    coefficient  into each row from the one before it, one for all or [n]; 1 gives running sums
    reverse      from the last row of a run to its first: y_t = x_t + coefficient_t y_(t+1)

    >>> recursion(torch.tensor([1.0, 2.0, 4.0]), 0.5, torch.zeros(3).long()).tolist()
    [1.0, 2.5, 5.25]
    """
    total, reach = x.to(torch.float64).clone(), torch.ones(len(x), dtype=torch.float64) * coefficient
    if reverse:
        return recursion(total.flip(0), reach.flip(0), owner.flip(0)).flip(0)
    place, step = places(owner), 1
    while step <= int(place.max() if len(x) else 0):
        inside = place[step:] >= step
        total[step:] = torch.where(inside, total[step:] + reach[step:] * total[:-step], total[step:])
        reach[step:] = reach[step:] * reach[:-step]
        step *= 2
    return total


@torch.no_grad()
def minimum(x: Tensor, owner: Tensor) -> Tensor:
    """Running minimum within each run, [n] float64.

    >>> minimum(torch.tensor([2.0, 3.0, 1.0, 5.0]), torch.tensor([0, 0, 0, 1])).tolist()
    [2.0, 2.0, 1.0, 5.0]
    """
    least, place, step = x.to(torch.float64).clone(), places(owner), 1
    while step <= int(place.max() if len(x) else 0):
        inside = place[step:] >= step
        least[step:] = torch.where(inside, torch.minimum(least[step:], least[:-step]), least[step:])
        step *= 2
    return least


def before(x: Tensor, owner: Tensor, start: float = 0.0) -> Tensor:
    """Previous row's value, [n]; `start` for the first of a run. Makes a running statistic exclusive."""
    moved = torch.cat([x[:0], x.new_full((min(1, len(x)),), start), x[:-1]])
    return torch.where(places(owner) > 0, moved, torch.full_like(x, start))


def gains(place: Tensor, process_noise: float, observation_noise: float, initial_variance: float) -> Tensor:
    """Kalman gain at each position (from 0) of a random walk observed with noise, [n] float64.

    P_0 is the initial variance; at each row P- = P + Q, K = P- / (P- + V), P = (1 - K) P-. The gain depends on the
    place alone and has a closed form: with k+ > 0 > k- the fixed points of K -> (K + q) / (K + q + 1), q = Q / V, it is
    their mixture with weights that decay as (1 + q + k+)^-2t.

    >>> gains(torch.arange(3), 0.1, 1.0, 1.0).round(decimals=6).tolist()
    [0.52381, 0.384164, 0.32622]
    """
    q, start = process_noise / observation_noise, initial_variance / observation_noise
    t = (place + 1).to(torch.float64)
    if q == 0:
        return start / (1.0 + start * t)
    far = (q + math.sqrt(q * q + 4 * q)) / 2  # -k-
    near = q / far  # k+
    lost = torch.expm1(-2.0 * math.log1p(near + q) * t)  # decay - 1, in (-1, 0)
    decay = 1.0 + lost
    return (start * (near + far * decay) - q * lost) / (far + near * decay - start * lost)


@torch.no_grad()
def kalman(x: Tensor, owner: Tensor, process_noise: float, observation_noise: float, initial_variance: float) -> Tensor:
    """Kalman filter within each run, [n] float64: y_t = y_(t-1) + K_t (x_t - y_(t-1)), y = 0 before its first row.

    Q to infinity gives `x`; Q = 0 and an initial variance to infinity its running mean.
    """
    gain = gains(places(owner), process_noise, observation_noise, initial_variance)
    return recursion(gain * x.to(torch.float64), 1.0 - gain, owner)
