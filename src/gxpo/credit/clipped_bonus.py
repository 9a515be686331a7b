"""Credit of a whole trajectory, raised by a bonus that can't turn it around."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import Center, Scale, group_relative
from gxpo.errors import ConfigError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def clipped_bonus(advantage: Tensor, bonus: Tensor, kappa: float = 2.0) -> Tensor:
    """A' = A + min(max(bonus, 0), |A| / kappa); [n] float64. nan is no bonus.

    |A' - A| <= |A| / kappa: with kappa above 1 no sign changes, and A = 0 stays 0.

    >>> clipped_bonus(torch.tensor([1.0, -1.0]), torch.tensor([0.3, 0.9])).tolist()
    [1.3..., -0.5]
    """
    advantage, bonus = advantage.to(torch.float64), bonus.to(torch.float64).nan_to_num(nan=0.0)
    return advantage + torch.minimum(bonus.clamp_min(0.0), advantage.abs() / kappa)


@dataclass(frozen=True)
class ClippedBonus(CreditPart):
    """`clipped_bonus` of `group_relative` outcomes and the signal "bonus" [R]: VERL.

    at  "all" tokens of a trajectory have the bonus, or its "last" one
    """

    kappa: float = 2.0
    at: Literal["all", "last"] = "all"
    center: Center = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6

    needs = ("bonus",)

    def __post_init__(self) -> None:
        one_of("credit.at", self.at, ("all", "last"))
        one_of("credit.center", self.center, ("mean", "leave_one_out", "median", "none"))
        one_of("credit.scale", self.scale, ("std", "none"))
        if not 1 <= self.kappa < math.inf:
            raise ConfigError(f"credit.kappa is {self.kappa}; it is 1 or more, so that a bonus turns no credit around")
        if self.center == "none" and self.scale == "none":
            object.__setattr__(self, "on_equal", "signal")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        plain = group_relative(
            forest.outcome, group, self.center, self.scale, self.ddof, self.eps, where=forest.compared
        )
        raised = forest.to_path(clipped_bonus(plain, signals["bonus"], self.kappa), "R")
        if self.at == "all":
            return raised
        place = torch.arange(forest.n_entries, dtype=torch.float64)
        last = levels.max(place, forest.path_trajectory, forest.path_trainable) == place
        return torch.where(last & forest.path_trainable, raised, forest.to_path(plain, "R"))
