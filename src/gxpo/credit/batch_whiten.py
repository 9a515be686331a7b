"""Credit whitened over the trainable tokens of the whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import group_relative
from gxpo.errors import one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def batch_whiten(value: Tensor, trainable: Tensor, where: Tensor | None = None, eps: float = 1e-8) -> Tensor:
    """A = (value - mean) / sqrt(var + eps), mean and unbiased variance over the batch's trainable entries.

    value      [P] any float dtype; the arithmetic is in float64
    trainable  [P] bool; other entries enter no statistic and are given 0
    where      [P] bool, compared (default: all): which trainable entries enter; the others are measured by them

    Returns [P] float64. The unit is the token: a long trajectory moves the mean more than a short one. Exactly 0
    everywhere where the batch is equal or fewer than two entries count.
    """
    batch = torch.where(trainable, 0, -1)
    mean, spread = levels.mean_and_std(value, batch, where, ddof=1)
    return torch.where(spread > 0, (value.to(torch.float64) - mean) / (spread.square() + eps).sqrt(), 0.0)


@dataclass(frozen=True)
class BatchWhiten(CreditPart):
    """`batch_whiten` of the outcome, or of what is left of it after the group's mean.

    center "none"  REINFORCE++: no group is needed; groups equal within but not between are given credit
    center "mean"  REINFORCE++-baseline: the group's mean is taken off first (0 for a group of one, where verl keeps
                   the raw reward), then the batch is whitened

    The paper's return from token t subtracts the KL of tokens t and after; here a KL in the reward is taken off the
    outcome, once for the trajectory: the same expected gradient, since the KL of earlier tokens is only a baseline.

    Source: REINFORCE++, arXiv 2501.03262; as in verl (masked whitening, eps 1e-8 inside the root).
    """

    center: Literal["none", "mean"] = "none"
    eps: float = 1e-8

    def __post_init__(self) -> None:
        one_of("credit.center", self.center, ("none", "mean"))
        object.__setattr__(self, "on_equal", "signal" if self.center == "none" else "zero")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        value = forest.outcome
        if self.center == "mean":
            value = group_relative(value, forest.ids("group", axis="R"), scale="none", where=forest.compared)
        compared = forest.to_path(forest.compared, "R")
        return batch_whiten(forest.to_path(value, "R"), forest.path_trainable, compared, self.eps)
