"""Loss aggregation over tokens: token mean, sequence mean or sum, from the totals of the whole optimiser step."""

from __future__ import annotations

import torch
from torch import Tensor

from gxpo.errors import GxpoError, one_of

AGGREGATES = ("token_mean", "sequence_mean", "sequence_sum")


@torch.no_grad()
def coefficients(
    trajectory: Tensor,
    counted: Tensor,
    mode: str,
    horizon: float | None = None,
    token: Tensor | None = None,
) -> Tensor:
    """Coefficients c [P] float64 such that sum_p c_p l_p is the aggregated loss; 0 for tokens that are not counted.

    trajectory  [P] which trajectory each entry belongs to
    counted     [P] bool, the trainable entries; a trajectory without any is not counted
    mode        "token_mean"     sum l / number of entries
                "sequence_mean"  mean over trajectories of the mean over their entries      (GRPO)
                "sequence_sum"   mean over trajectories of their sum / `horizon`            (Dr. GRPO)
    horizon     the constant of `sequence_sum`: the longest trainable length a trajectory can have
    token       [P] stored token of each entry, to count a shared token once: its term is the mean of its m entries'
                terms; it counts once in `token_mean` and 1/m in each of its m trajectories' means or sums

    The numerator's mask is the denominator's. Weights multiply the losses and change no denominator; padding and
    micro-batches do not exist here. Raises GxpoError where `sequence_sum` has no horizon.
    """
    one_of("objective.aggregate", mode, AGGREGATES)
    if mode == "sequence_sum" and (horizon is None or not horizon > 0):
        raise GxpoError(
            f"objective.horizon is {horizon}, and objective.aggregate 'sequence_sum' divides by it: set it to the "
            "longest trainable length a trajectory can have, in tokens"
        )
    share = counted.to(torch.float64)  # how much of itself a token is in each of its trajectories
    if token is not None:
        share = share / _totals(share, token)[token].clamp_min(1)
    if mode == "token_mean":
        return share / share.sum().clamp_min(1)
    width = _totals(share, trajectory)
    divisor = width if mode == "sequence_mean" else torch.full_like(width, float(horizon or 1))
    held = (width > 0).sum().clamp_min(1) * torch.where(width > 0, divisor, torch.ones_like(divisor))
    part = share / held[trajectory]
    # a shared token's term is the mean of its entries: the weight that all its trajectories give it, spread evenly
    return part if token is None else share * _totals(part, token)[token]


def _totals(x: Tensor, ids: Tensor) -> Tensor:
    return x.new_zeros(int(ids.max()) + 1 if ids.numel() else 0).index_add_(0, ids, x)
