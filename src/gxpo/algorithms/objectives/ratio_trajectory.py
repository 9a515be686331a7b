"""Importance ratios over a trajectory: prefix (MinPRO), Kalman-filtered (KPO), whole sequence (TOPR, VESPO)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.objectives.prefix import before, kalman, minimum, places, recursion
from gxpo.algorithms.objectives.surrogate import Positive, Width
from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part

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
        found = minimum(log_ratio, trajectory)
    else:
        found = recursion(log_ratio, 1.0, trajectory)
        found = found / (places(trajectory) + 1) if prefix == "mean" else found
    return before(found, trajectory).clamp(-_BOUND, _BOUND)


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
    """Kalman-filtered importance ratio (KPO): log s_t = stop(x_t) + log rho_t - stop(log rho_t), x from `kalman`.

    process_noise      variance Q by which the latent log-ratio may change from token to token
    observation_noise  variance V of a token's own log-ratio about it
    initial_variance   of the latent before the first token, where its mean is 0

    Value of the filter, gradient of the token. Only Q / V and the initial variance / V matter: gains are known before
    anything is seen. With the defaults they rise from 1e-6 to 1e-3, a memory of a thousand tokens. On policy it is 1;
    Q to infinity is the token's ratio; Q = 0 with a large initial variance the geometric mean of the prefix.

    Source: KPO, arXiv 2602.10609, and its code.
    """
    now = log_ratio.detach()
    held = kalman(now, trajectory, process_noise, observation_noise, initial_variance)
    return held.to(log_ratio) + (log_ratio - now)


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
    held = log_ratio.detach()
    return _sums(held, trajectory).clamp(-log_ratio_max, log_ratio_max).to(held)[trajectory] + (log_ratio - held)


@part("sequence_product", stage="ratio", couples="trajectory")
def sequence_product(log_ratio: Tensor, trajectory: Tensor, *, log_ratio_max: Bound = 20.0) -> Tensor:
    """The same ratio, whose gradient each token carries in full: the mean over a trajectory's tokens
    (`objective.aggregate: sequence_mean`) is its one term, in value as in gradient (P3O).

    log s_{i,t} = sum over trajectory i of log rho, held as in `sequence_sum`.
    """
    total = _sums(log_ratio, trajectory)
    held = total.detach()
    return (held.clamp(-log_ratio_max, log_ratio_max) + (total - held)).to(log_ratio)[trajectory]


def _sums(x: Tensor, trajectory: Tensor) -> Tensor:
    """Sum of each trajectory's entries, float64."""
    n = int(trajectory.max()) + 1 if trajectory.numel() else 0
    return x.new_zeros(n, dtype=torch.float64).index_add(0, trajectory, x.to(torch.float64))
