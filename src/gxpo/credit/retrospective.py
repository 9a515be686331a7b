"""Credit of rollouts that come back after their update: what they were given, times what the update was worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import Center, Scale, group_relative
from gxpo.errors import one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

REPLAY = "replay"


@torch.no_grad()
def shares(advantage: Tensor, group: Tensor, eps: float = 1e-6, where: Tensor | None = None) -> Tensor:
    """a_i = G A_i / (sum_j |A_j| + eps), G and the sum over the group's counting members; [R] float64.

    sum_i |a_i| = G up to eps: every group is moved as far, whatever the scale of its advantages.

    >>> shares(torch.tensor([1.5, -0.5, -0.5, -0.5]), torch.zeros(4, dtype=torch.int64), eps=0.0)
    tensor([ 2.0000, -0.6667, -0.6667, -0.6667], dtype=torch.float64)
    """
    total = levels.sum(advantage.abs(), group, where) + eps
    scaled = levels.count(group, where) * advantage.to(torch.float64)
    return torch.where(total > 0, scaled / torch.where(total > 0, total, 1.0), 0.0)


@dataclass(frozen=True)
class Retrospective(CreditPart):
    """`group_relative` for fresh rollouts; for replayed ones (origin "replay") its `shares` times "improvement" [R].

    share_eps  of `shares`

    The signal "improvement" says how much better (above 0) or worse (below) the policy has become since the replayed
    rollouts were trained on. Source: PIPO, arXiv 2604.00860.
    """

    center: Center = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6
    share_eps: float = 1e-6

    needs = ("improvement",)

    def __post_init__(self) -> None:
        one_of("credit.center", self.center, ("mean", "leave_one_out", "median", "none"))
        one_of("credit.scale", self.scale, ("std", "none"))
        if self.center == "none" and self.scale == "none":
            object.__setattr__(self, "on_equal", "signal")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group, where = forest.ids("group", axis="R"), forest.compared
        fresh = group_relative(forest.outcome, group, self.center, self.scale, self.ddof, self.eps, where=where)
        again = torch.tensor([origin == REPLAY for origin in forest.origin], dtype=torch.bool)
        replayed = shares(fresh, group, self.share_eps, where) * signals["improvement"]
        return forest.to_path(torch.where(again, replayed, fresh), "R")
