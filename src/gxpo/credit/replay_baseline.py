"""Credit of replayed rollouts: their outcomes against how the policy does on the task now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import Center, Scale, group_relative
from gxpo.credit.retrospective import REPLAY
from gxpo.errors import one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def replay_baseline(
    outcome: Tensor, baseline: Tensor, group: Tensor, ddof: int = 1, eps: float = 1e-6, where: Tensor | None = None
) -> Tensor:
    """A = (outcome - baseline) / (std + eps), std of the group's outcomes; [R] float64.

    baseline  [R] nan: nothing is known of the task, and A is 0
    where     [R] bool: whose outcomes make up the std (default: all)

    Where there is no spread to measure by (equal outcomes, or ddof members) A is outcome - baseline, so that a group
    that is right throughout still tells a policy that is not. The sum over a group is not 0.

    >>> replay_baseline(torch.tensor([1.0, 1.0]), torch.tensor([0.25, 0.25]), torch.tensor([0, 0])).tolist()
    [0.75, 0.75]
    """
    apart = outcome.to(torch.float64) - baseline.to(torch.float64)
    spread = levels.std(outcome, group, where, ddof)
    return torch.where(spread > 0, apart / (spread + eps), apart).nan_to_num(nan=0.0)


@dataclass(frozen=True)
class ReplayBaseline(CreditPart):
    """`group_relative` for fresh rollouts; for replayed ones (origin "replay") `replay_baseline` with "baseline" [R].

    The same for every token of a trajectory. With rollouts of no other origin than the policy's this is
    `group_relative`. Source: AVATAR, arXiv 2508.03100.
    """

    center: Center = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6

    needs = ("baseline",)
    on_equal = "signal"

    def __post_init__(self) -> None:
        one_of("credit.center", self.center, ("mean", "leave_one_out", "median", "none"))
        one_of("credit.scale", self.scale, ("std", "none"))

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group, where = forest.ids("group", axis="R"), forest.compared
        again = torch.tensor([origin == REPLAY for origin in forest.origin], dtype=torch.bool)
        fresh = group_relative(forest.outcome, group, self.center, self.scale, self.ddof, self.eps, where=where)
        old = replay_baseline(forest.outcome, signals["baseline"], group, self.ddof, self.eps, where & again)
        return forest.to_path(torch.where(again, old, fresh), "R")
