"""Batch-whitened advantages (REINFORCE++), over trainable tokens or over trajectories."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from gxpo.algorithms.credit.relative import Single, group_relative
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part


@torch.no_grad()
def batch_whiten(
    value: Tensor, trainable: Tensor, where: Tensor | None = None, eps: float = 1e-8, ddof: int = 1
) -> Tensor:
    """Whitening over the batch's trainable tokens: A = (value - mean) / sqrt(var + eps), variance with `ddof`.

    value      [P] any float dtype; the arithmetic is in float64
    trainable  [P] bool; other entries enter no statistic and are given 0
    where      [P] bool, compared (default: all): trainable entries that enter; the others are measured by them

    Returns [P] float64. The unit is the token: a long trajectory moves the mean more than a short one. Exactly 0
    everywhere where the batch is equal or fewer than two entries count.
    """
    batch = torch.where(trainable, 0, -1)
    mean, std = grouped.mean_and_std(value, batch, where, ddof=ddof)
    scale = (std.square() + eps).sqrt()
    scale = torch.where(torch.isfinite(scale), scale, std)  # eps is nothing beside a spread whose square overflows
    return torch.where(std > 0, (value.to(torch.float64) - mean) / scale, 0.0)


@part("batch_whiten", stage="credit", gives="P", learns_from_equal_groups=lambda center, **_: center == "none")
def batch_relative(
    outcome: Tensor,
    group: Tensor,
    forest: Forest,
    *,
    center: Literal["none", "mean", "leave_one_out"] = "none",
    eps: float = 1e-8,
    batch_unit: Literal["tokens", "trajectories"] = "tokens",
    ddof: int = 1,
    singleton: Single = "zero",
    bound: Annotated[float, Gt(0)] = math.inf,
) -> Tensor:
    """Batch-whitened advantage (REINFORCE++) of the outcome, or of the outcome minus the group's baseline; [P] float64.

    center  "none"  REINFORCE++: no group is needed; groups equal within but not between get an advantage
            "mean"  REINFORCE++-baseline: the group's mean is taken off first, then the batch is whitened
            "leave_one_out"  the mean of the group's others is
    batch_unit  "tokens": (x - mean) / sqrt(var + eps), as in the paper's code, verl and OpenRLHF; "trajectories": each
            counts once, (x - mean) / (std + eps), as TRL does with eps 1e-4
    ddof    of the batch's variance: 1 in verl and TRL, 0 in OpenRLHF, the authors' own, and NeMo-RL
    singleton  value of a group of one, with a center: "zero", or its "raw" outcome, as in verl
    bound   the whitened advantage is clipped to [-bound, bound]

    The paper's return from token t subtracts the KL of tokens t and after; here a KL in the reward is taken off the
    outcome, once for the trajectory: the same expected gradient, since the KL of earlier tokens is only a baseline.

    Source: REINFORCE++, arXiv 2501.03262; as in verl (masked whitening, eps 1e-8 inside the root).
    """
    value, where = outcome, forest.compared
    # REINFORCE++-baseline: the group's centre goes first, so that the batch is whitened by differences.
    if center != "none":
        value = group_relative(outcome, group, center, "none", where=where, singleton=singleton)
    # TRL counts each trajectory once and adds eps to the std; verl counts tokens and adds it to the variance.
    if batch_unit == "trajectories":
        advantage_P = forest.to_path(grouped.normalize(value, torch.zeros_like(group), where, ddof=ddof, eps=eps), "R")
    else:
        token_columns = forest.to_path(value, "R"), forest.path_trainable, forest.to_path(where, "R")
        advantage_P = batch_whiten(*token_columns, eps, ddof)
    return advantage_P.clamp(-bound, bound)
