"""Credit that treats groups without a single success apart: centred, but not scaled to unit spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import Center, Scale, group_relative
from gxpo.errors import ConfigError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@dataclass(frozen=True)
class NegativeGroups(CreditPart):
    """`group_relative` where a compared member of the group is correct; alpha (outcome - center) where none is.

    What tells the answers of an all-wrong group apart is small (a penalty of at most 1 / G): divided by its own spread
    it would weigh as much as a success. alpha is such a group's weight in the loss. A trajectory without a verdict
    counts as correct where its outcome is above 0. Equal outcomes give 0; the part is for outcomes that a method's own
    reward has made unequal, and groups must not be dropped before.

    Source: LENS, arXiv 2510.08696.
    """

    alpha: float = 0.25
    center: Center = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6

    on_equal = "signal"

    def __post_init__(self) -> None:
        one_of("credit.center", self.center, levels.CENTERS)
        one_of("credit.scale", self.scale, levels.SCALES)
        if not self.alpha >= 0:
            raise ConfigError(f"credit.alpha is {self.alpha}; it is the weight of an all-wrong group, 0 or more")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group, where = forest.ids("group", axis="R"), forest.compared
        correct = torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0)
        solved = levels.max(correct, group, where) > 0
        scaled = group_relative(forest.outcome, group, self.center, self.scale, self.ddof, self.eps, where=where)
        centred = group_relative(forest.outcome, group, self.center, "none", where=where)
        return forest.to_path(torch.where(solved, scaled, self.alpha * centred), "R")
