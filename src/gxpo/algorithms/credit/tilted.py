"""Tilted credit (DMPO): softmax weights of the reward-tilted reference, less those of the oppositely tilted one."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.forest import grouped
from gxpo.parts.registry import part


@part(
    "tilted",
    stage="credit",
    learns_from_equal_groups=lambda baseline, strength, **_: (baseline, strength) != ("negative", 1.0),
)
def tilted(
    outcome: Tensor,
    group: Tensor,
    compared: Tensor,
    length: Tensor,
    mean_reference_logprob: Tensor,
    mean_proximal_logprob: Tensor,
    *,
    alpha: Annotated[float, Gt(0)] = 0.04,
    step_size: Annotated[float, Interval(gt=0, le=1)] = 1.0,
    baseline: Literal["negative", "mean"] = "negative",
    strength: Annotated[float, Ge(0)] = 1.0,
) -> Tensor:
    """Importance weights of a group towards p* ~ p_ref e^(r / alpha), less a baseline; [R] float64.

    w+_i = softmax_i(c (log p_ref(y_i) - log p_old(y_i) + r_i / alpha)),   w-_i the same with -r_i / alpha
    A_i  = w+_i - strength b_i,     b = w- ("negative") or the mean of w+ over the group ("mean")

    alpha      temperature of the tilt;   step_size  c: 1 aims at p* itself, less at a policy between
    log p(y)   of a whole answer: the sum over its trained tokens

    With strength 1 the advantages of a group sum to 0; with w- they are 0 where all rewards are equal.
    Source: DMPO, arXiv 2510.08233, and its code.
    """
    log_ratio = (mean_reference_logprob - mean_proximal_logprob) * length
    positive = grouped.softmax(step_size * (log_ratio + outcome / alpha), group, compared)
    if baseline == "negative":
        return positive - strength * grouped.softmax(step_size * (log_ratio - outcome / alpha), group, compared)
    return positive - strength * grouped.mean(positive, group, compared)
