"""Importance ratios over a trajectory: prefix (MinPRO), Kalman-filtered (KPO), whole sequence (TOPR, VESPO).

First the running statistics over earlier (or later) tokens that they are made of: sum, minimum, Kalman filter.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.objectives.surrogate import Positive, Width
from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part


# ---------------------------------------------------------------- running statistics of the tokens of a trajectory
# Rows of one owner are adjacent, in order of time, as tokens are in path order. All by doubling: after k rounds a row
# holds what is less than 2^k rows away, so log2 of the longest run's length rounds are enough. A row's result depends
# on the rows of its own run and on nothing else in the batch. Detached, float64.
def run_positions(owner: Tensor) -> Tensor:
    """Position of each row in its run, from 0, [n] int64.

    >>> run_positions(torch.tensor([3, 3, 3, 7, 7])).tolist()
    [0, 1, 2, 0, 1]
    """
    rows = torch.arange(len(owner))
    first = torch.ones(len(owner), dtype=torch.bool)
    first[1:] = owner[1:] != owner[:-1]
    return rows - torch.where(first, rows, 0).cummax(0).values if len(owner) else rows


@torch.no_grad()
def run_recursion(x: Tensor, coefficient: float | Tensor, owner: Tensor, *, reverse: bool = False) -> Tensor:
    """Linear recursion y_t = x_t + coefficient_t y_(t-1) within each run, y = x at its first row; [n] float64.

    coefficient  into each row from the one before it, one for all or [n]; 1 gives running sums
    reverse      from the last row of a run to its first: y_t = x_t + coefficient_t y_(t+1)

    >>> run_recursion(torch.tensor([1.0, 2.0, 4.0]), 0.5, torch.zeros(3).long()).tolist()
    [1.0, 2.5, 5.25]
    """
    # reverse is the same scan on flipped columns
    total, coefficients = x.to(torch.float64).clone(), torch.ones(len(x), dtype=torch.float64) * coefficient
    if reverse:
        return run_recursion(total.flip(0), coefficients.flip(0), owner.flip(0)).flip(0)
    place, step = run_positions(owner), 1
    while step <= int(place.max() if len(x) else 0):
        inside = place[step:] >= step
        total[step:] = torch.where(inside, total[step:] + coefficients[step:] * total[:-step], total[step:])
        coefficients[step:] = coefficients[step:] * coefficients[:-step]
        step *= 2
    return total


@torch.no_grad()
def running_minimum(x: Tensor, owner: Tensor) -> Tensor:
    """Running minimum within each run, [n] float64.

    >>> running_minimum(torch.tensor([2.0, 3.0, 1.0, 5.0]), torch.tensor([0, 0, 0, 1])).tolist()
    [2.0, 2.0, 1.0, 5.0]
    """
    least, place, step = x.to(torch.float64).clone(), run_positions(owner), 1
    while step <= int(place.max() if len(x) else 0):
        inside = place[step:] >= step
        least[step:] = torch.where(inside, torch.minimum(least[step:], least[:-step]), least[step:])
        step *= 2
    return least


def previous_value(x: Tensor, owner: Tensor, start: float = 0.0) -> Tensor:
    """Previous row's value, [n]; `start` for the first of a run. Makes a running statistic exclusive."""
    previous = torch.cat([x[:0], x.new_full((min(1, len(x)),), start), x[:-1]])
    return torch.where(run_positions(owner) > 0, previous, torch.full_like(x, start))


def kalman_gains(place: Tensor, process_noise: float, observation_noise: float, initial_variance: float) -> Tensor:
    """Kalman gain at each position (from 0) of a random walk observed with noise, [n] float64.

    P_0 is the initial variance; at each row P- = P + Q, K = P- / (P- + V), P = (1 - K) P-. The gain depends on the
    place alone and has a closed form: with k+ > 0 > k- the fixed points of K -> (K + q) / (K + q + 1), q = Q / V, it is
    their mixture with weights that decay as (1 + q + k+)^-2t.

    >>> kalman_gains(torch.arange(3), 0.1, 1.0, 1.0).round(decimals=6).tolist()
    [0.52381, 0.384164, 0.32622]
    """
    # only the two ratios to the observation noise matter
    q, start = process_noise / observation_noise, initial_variance / observation_noise
    t = (place + 1).to(torch.float64)
    # without process noise the latent is constant: the gain of a running mean
    if q == 0:
        return start / (1.0 + start * t)
    far = (q + math.sqrt(q * q + 4 * q)) / 2  # -k-
    near = q / far  # k+
    decay_minus_one = torch.expm1(-2.0 * math.log1p(near + q) * t)  # decay - 1, in (-1, 0)
    decay = 1.0 + decay_minus_one
    return (start * (near + far * decay) - q * decay_minus_one) / (far + near * decay - start * decay_minus_one)


@torch.no_grad()
def kalman_filter(
    x: Tensor, owner: Tensor, process_noise: float, observation_noise: float, initial_variance: float
) -> Tensor:
    """Kalman filter within each run, [n] float64: y_t = y_(t-1) + K_t (x_t - y_(t-1)), y = 0 before its first row.

    Q to infinity gives `x`; Q = 0 and an initial variance to infinity its running mean.
    """
    gain = kalman_gains(run_positions(owner), process_noise, observation_noise, initial_variance)
    return run_recursion(gain * x.to(torch.float64), 1.0 - gain, owner)


# ---------------------------------------------------------------- ratios
_BOUND = 60.0  # nats: e^60 is beyond every clip, and finite in float32


@torch.no_grad()
def prefix_ratio(log_ratio: Tensor, trajectory: Tensor, prefix: str = "min") -> Tensor:
    """Log of the factor for the earlier tokens of the trajectory, [n] float64, detached; 0 for the first.

    log_ratio   [n] of the tokens, by trajectory, then time
    prefix      "min": the smallest of their ratios; "mean": their geometric mean; "sum": their product, which is the
                exact correction of the state's distribution and whose variance grows with the length. Held in +-60.

    >>> x = torch.tensor([0.1, -0.3, 0.2, 0.05], dtype=torch.float64)
    >>> prefix_ratio(x, torch.zeros(4).long()).exp().round(decimals=6).tolist()
    [1.0, 1.105171, 0.740818, 0.740818]
    """
    if prefix == "min":
        statistic = running_minimum(log_ratio, trajectory)
    else:
        statistic = run_recursion(log_ratio, 1.0, trajectory)
        statistic = statistic / (run_positions(trajectory) + 1) if prefix == "mean" else statistic
    return previous_value(statistic, trajectory).clamp(-_BOUND, _BOUND)


@part("prefix", stage="ratio", couples="trajectory")
def prefix_level(log_ratio: Tensor, trajectory: Tensor, *, prefix: Literal["min", "mean", "sum"] = "min") -> Tensor:
    """Prefix importance ratio (MinPRO): log w_t = log rho_t + stop(`prefix_ratio`); each token keeps its own gradient.

    prefix  "min" | "mean" | "sum" over the earlier tokens of the trajectory, 0 (a factor of 1) for the first

    On policy it is the token's ratio. A "min" above 1 is possible while all earlier tokens have become likelier.

    Source: MinPRO, arXiv 2601.22718 ("min").
    """
    return log_ratio + prefix_ratio(log_ratio.detach(), trajectory, prefix).to(log_ratio)


def _moves(process_noise: float, initial_variance: float, **_: float) -> str | None:
    if process_noise or initial_variance:
        return None
    return "process_noise and initial_variance are both 0, so the ratio is always 1: raise one"


@part("filtered", stage="ratio", couples="trajectory")
@checked_by(_moves)
def filtered(
    log_ratio: Tensor,
    trajectory: Tensor,
    *,
    process_noise: Width = 1e-6,
    observation_noise: Positive = 1.0,
    initial_variance: Width = 0.0,
) -> Tensor:
    """Kalman-filtered importance ratio (KPO): log s_t = stop(x_t) + log rho_t - stop(log rho_t), x of `kalman_filter`.

    process_noise      variance Q by which the latent log-ratio may change from token to token
    observation_noise  variance V of a token's own log-ratio about it
    initial_variance   of the latent before the first token, where its mean is 0

    Value of the filter, gradient of the token. Only Q / V and the initial variance / V matter: gains are known before
    anything is seen. With the defaults they rise from 1e-6 to 1e-3, a memory of a thousand tokens. On policy it is 1;
    Q to infinity is the token's ratio; Q = 0 with a large initial variance the geometric mean of the prefix.

    Source: KPO, arXiv 2602.10609, and its code.
    """
    # value of the filter, gradient of the token
    token_log_ratio = log_ratio.detach()
    filtered_log_ratio = kalman_filter(token_log_ratio, trajectory, process_noise, observation_noise, initial_variance)
    return filtered_log_ratio.to(log_ratio) + (log_ratio - token_log_ratio)


Bound = Annotated[float, Interval(gt=0, le=80)]


@part("sequence_sum", stage="ratio", couples="trajectory")
def sequence_sum(log_ratio: Tensor, trajectory: Tensor, *, log_ratio_max: Bound = 20.0) -> Tensor:
    """Sequence importance ratio without length normalisation (TOPR, VESPO).

    log s_{i,t} = stop(sum over trajectory i of log rho) + log rho_t - stop(log rho_t).

    log_ratio_max  the sum is held in [-log_ratio_max, log_ratio_max], so that no ratio overflows; the gradient is not

    The value is pi(y) / mu(y), each token carries its own gradient, and the gradients of a trajectory's terms sum to
    that of the product. Not normalised by length: a long trajectory's ratio is soon far from 1, so it is for surrogates
    that bound it. Source: TOPR, arXiv 2503.14286; VESPO, arXiv 2602.10693.
    """
    token_log_ratio = log_ratio.detach()
    return _sum_by_trajectory(token_log_ratio, trajectory).clamp(-log_ratio_max, log_ratio_max).to(token_log_ratio)[
        trajectory
    ] + (log_ratio - token_log_ratio)


@part("sequence_product", stage="ratio", couples="trajectory")
def sequence_product(log_ratio: Tensor, trajectory: Tensor, *, log_ratio_max: Bound = 20.0) -> Tensor:
    """Sequence importance ratio whose gradient each token carries in full (P3O).

    The mean over a trajectory's tokens (`objective.aggregate: sequence_mean`) is its one term, in value and gradient.

    log s_{i,t} = sum over trajectory i of log rho, held as in `sequence_sum`.
    """
    # bounded in value alone: a clamp of the sum itself would cut the gradient
    total = _sum_by_trajectory(log_ratio, trajectory)
    total_R = total.detach()
    return (total_R.clamp(-log_ratio_max, log_ratio_max) + (total - total_R)).to(log_ratio)[trajectory]


def _sum_by_trajectory(x: Tensor, trajectory: Tensor) -> Tensor:
    """Sum over each trajectory's tokens, [R] float64."""
    n = int(trajectory.max()) + 1 if trajectory.numel() else 0
    return x.new_zeros(n, dtype=torch.float64).index_add(0, trajectory, x.to(torch.float64))
