"""Group weights by difficulty: a curve of the success rate or another statistic of the group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gxpo.algorithms.weighting.columns import SCORES, Columns, Scored
from gxpo.parts.functions import expect
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@part("group_weight", stage="weight")
@dataclass(frozen=True)
class GroupWeight(Scored):
    """w = curve(statistic of the group), the same for every token of its trajectories.

    statistic  a score of groups in `weighting.scores` by name ("success_rate", "mean_outcome", ...), or a function
               of columns [R] that gives [R], the same for all of a group
    curve      a function in `weighting.group_curves` by name, `file.py:function` or a function: of the statistic
               [G], and of other scores of groups by the names of its parameters, [G] each. It gives the weights [G], or
               [G, 2]: for positive advantages, and for the rest
    options    of both, each an option of the weight: `weight.NAME.flip`

    `weight.mine: group_weight`, `weight.mine.curve: my_weights.py:easy_first`. A group without compared members has
    rate and mean 0, and `size` 0.
    """

    statistic: Any = "success_rate"
    curve: Any = "gaussian_rate"
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "statistic": (SCORES, True),
        "curve": ("gxpo.algorithms.weighting.group_curves", False),
    }

    @torch.no_grad()
    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        columns, group = Columns(forest, credit, signals), forest.ids("group", axis="R")
        first = torch.zeros(int(group.max()) + 1 if len(group) else 0, dtype=torch.int64)
        first[group.flip(0)] = torch.arange(len(group)).flip(0)  # a row of each group
        x = columns.scored(self.statistic, "R", self.options)
        weight = self.apply(self.curve, [part[first] for part in columns.given(self.curve, "R", x)])
        if getattr(weight, "shape", None) != (len(first), 2):  # of advantages above 0, and of the others
            expect(weight, (len(first),), "curve of group_weight", self.curve, "group")
        of_entry = weight[group][forest.path_trajectory]
        return of_entry if weight.dim() == 1 else torch.where(credit > 0, of_entry[:, 0], of_entry[:, 1])
