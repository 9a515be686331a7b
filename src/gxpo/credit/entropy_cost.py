"""Credit that makes every answer pay for the policy's uncertainty while it was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.errors import ConfigError, MissingSignal

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def entropy_cost(entropy: Tensor, trajectory: Tensor, where: Tensor, coef: float = 0.1) -> Tensor:
    """A = -coef * mean entropy of the trajectory's tokens in `where`; [P] float64, 0 where it has none.

    entropy  [P] nats;   trajectory  [P] int64;   where  [P] bool

    >>> one = torch.zeros(2, dtype=torch.int64)
    >>> entropy_cost(torch.tensor([1.0, 3.0]), one, one == 0).tolist()
    [-0.2, -0.2]
    """
    return -coef * levels.mean(torch.where(where, entropy.to(torch.float64), 0.0), trajectory, where)


@dataclass(frozen=True)
class EntropyCost(CreditPart):
    """`entropy_cost` over the trainable tokens, of the policy at the start of the step; made to be added to another.

    coef  credit per nat

    Reads signal `entropy`. Answers of a group of equal outcomes pay too. Source: GTPO, arXiv 2508.03772, its code.
    """

    coef: float = 0.1

    needs = ("entropy",)
    on_equal = "signal"

    def __post_init__(self) -> None:
        if not self.coef >= 0:
            raise ConfigError(f"entropy_cost.coef is {self.coef}; it is 0 or more")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        entropy, trainable = signals["entropy"], forest.path_trainable
        if missing := int((entropy.isnan() & trainable).sum()):
            raise MissingSignal(f"entropy is nan for {missing} of {int(trainable.sum())} trainable tokens")
        return entropy_cost(entropy, forest.path_trajectory, trainable, self.coef)
