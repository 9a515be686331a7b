"""Group-relative advantages reshaped by the group's success rate: GRPO-LEAD, MAPO, LENS."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.algorithms.credit.relative import group_relative
from gxpo.parts.registry import part


# ---------------------------------------------------------------- GRPO-LEAD
@torch.no_grad()
def logistic_weight(
    rate: Tensor, low: float = 0.4, high: float = 1.5, steepness: float = 10.0, midpoint: float = 0.75
) -> Tensor:
    """Logistic weight low + (high - low) / (1 + exp(steepness (rate - middle))), float64: falls from high to low.

    >>> [round(w, 6) for w in logistic_weight(torch.tensor([0.75, 0.25])).tolist()]
    [0.95, 1.492638]
    """
    falling = torch.sigmoid(-steepness * (rate.to(torch.float64) - midpoint))
    return low + (high - low) * falling


@part("difficulty_weighted", stage="credit")
def difficulty_weighted(
    advantage: Tensor,
    rate: Tensor,
    *,
    low: Annotated[float, Ge(0)] = 0.4,
    high: Annotated[float, Ge(0)] = 1.5,
    steepness: float = 10.0,
    midpoint: float = 0.75,
) -> Tensor:
    """Difficulty-weighted advantage (GRPO-LEAD): rare successes and rare failures weigh more; [R] float64.

    advantage * w(rate) where it is positive, advantage * w(1 - rate) elsewhere, with w of `logistic_weight`.

    advantage  [R] any float dtype;   rate  [R] share of the group's attempts that are correct

    Successes at hard tasks weigh more, and so do failures at easy ones; the second curve is w at 1 - rate, which is not
    1 - w. The sign is the advantage's: a long correct answer of an easy group may be below the mean.
    Source: GRPO-LEAD (arXiv 2504.09696).
    """
    constants, rate = (low, high, steepness, midpoint), rate.to(torch.float64)
    # Rarity is that of the trajectory's own verdict: successes are rare at a low rate, failures at a high one.
    weight_of_success, weight_of_failure = logistic_weight(rate, *constants), logistic_weight(1.0 - rate, *constants)
    return advantage.to(torch.float64) * torch.where(advantage > 0, weight_of_success, weight_of_failure)


# ---------------------------------------------------------------- MAPO
@part("mixed_scale", stage="credit", centres_outcomes=True)
def mixed_scale(
    outcome: Tensor, group: Tensor, rate: Tensor, where: Tensor | None = None, *, ddof: int = 1, eps: float = 1e-6
) -> Tensor:
    """Mixed advantage (MAPO) between GRPO's and MaxRL's, by how certain the group's success rate is.

    A = (1 - l) (outcome - mean) / (std + eps) + l (outcome - mean) / (mean + eps), l = 1 - 4 rate (1 - rate).

    outcome  [R] any float dtype, >= 0;   group  [R] int64 dense ids, -1 = in no group
    rate     [R] share of the group's attempts that succeed
    where    [R] bool, compared (default: all)

    Returns [R] float64. Over a group it adds up to 0. At rate 1/2 this is GRPO, towards 0 and 1 MaxRL, so that a lone
    success is given more than by GRPO, and a lone failure towards -1 however large the group. Exactly 0: a group of
    one, of equal outcomes; where the mean is not above 0 its term is left out.

    Source: MAPO, arXiv 2509.18849, and its code (`ddof` 1, eps 1e-6 on both).
    """
    # 1 at rates 0 and 1, where the std is small and would blow a single outcome up; 0 at rate 1/2.
    certain = 1.0 - 4.0 * rate.to(torch.float64) * (1.0 - rate.to(torch.float64))
    by_spread = group_relative(outcome, group, "mean", "std", ddof, eps, where=where)
    by_mean = group_relative(outcome, group, "mean", "mean", ddof, eps, where=where)
    return (1.0 - certain) * by_spread + certain * by_mean


# ---------------------------------------------------------------- LENS
@part("negative_groups", stage="credit", learns_from_equal_groups=True)
def negative_groups(
    outcome: Tensor,
    group: Tensor,
    rate: Tensor,
    where: Tensor | None = None,
    *,
    alpha: Annotated[float, Ge(0)] = 0.25,
    **statistic: Any,
) -> Tensor:
    """Group-relative advantage, with alpha (outcome - center) in groups without a success (LENS); [R] float64.

    What tells the answers of an all-wrong group apart is small (a penalty of at most 1 / G): divided by its own spread
    it would weigh as much as a success. alpha is such a group's weight in the loss. Equal outcomes give 0; the part is
    for outcomes that a method's own reward has made unequal, and groups must not be dropped before.

    Source: LENS, arXiv 2510.08696.
    """
    relative = group_relative(outcome, group, where=where, **statistic)
    # Divided by their own tiny spread, penalties in an all-wrong group would weigh as much as a success.
    centred = group_relative(outcome, group, where=where, **{**statistic, "scale": "none"})
    return torch.where(rate > 0, relative, alpha * centred)
