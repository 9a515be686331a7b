"""Default update: epochs over the step's trajectories, in minibatches of whole groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.forest import Forest
from gxpo.learners.update import UpdatePart
from gxpo.protocols import StepInfo, StepRunner
from gxpo.registry import part


def deal(group: Tensor, minibatches: int) -> list[Tensor]:
    """Split rows into `minibatches` parts of whole groups, in group order; fewer parts if there are fewer groups.

    group [R]: dense ids. The numbers of groups of two parts differ by at most one.

    >>> [part.tolist() for part in deal(torch.tensor([0, 0, 1, 1, 2, 2]), 2)]
    [[0, 1, 2, 3], [4, 5]]
    """
    groups = int(group.max()) + 1 if group.numel() else 0
    parts = torch.arange(groups).tensor_split(min(minibatches, max(groups, 1)))
    return [torch.isin(group, part).nonzero().squeeze(1) for part in parts if part.numel()]


@part("epochs", stage="update")
@dataclass(frozen=True)
class Epochs(UpdatePart):
    """`epochs` passes over the step's trajectories, each in `minibatches` optimiser steps; groups in forest order."""

    epochs: Annotated[int, Ge(1)] = 1
    minibatches: Annotated[int, Ge(1)] = 1

    def optimiser_steps(self, groups: int) -> int:
        """Number of optimiser steps in a step of `groups` groups."""
        return self.epochs * min(self.minibatches, groups)

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]:
        parts = deal(forest.ids("group", axis="R"), self.minibatches)
        return [
            learner.step(forest, credit, weight, part if len(parts) > 1 else None)
            for _ in range(self.epochs)
            for part in parts
        ]
