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
from gxpo.trees import dense


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
    """`epochs` passes over the step's trajectories, each in `minibatches` optimiser steps; groups in forest order.

    first  None, or an origin ("replay") whose rollouts have minibatches of their own before all others, so that each
           step is a mean over its own kind. There are none where none of them has an advantage. With
           `objective.ratio_over: behaviour` each step takes its importance ratio against the rollout policy. Source:
           PIPO, arXiv 2604.00860 (retrospective step, then base step)
    """

    epochs: Annotated[int, Ge(1)] = 1
    minibatches: Annotated[int, Ge(1)] = 1
    first: str | None = None

    def optimiser_steps(self, groups: int) -> int:
        """Number of optimiser steps in a step of `groups` groups."""
        return self.epochs * min(self.minibatches, groups) * (1 if self.first is None else 2)

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]:
        parts = self._parts(forest, credit * weight)
        return [learner.step(forest, credit, weight, part) for _ in range(self.epochs) for part in parts]

    def _parts(self, forest: Forest, coefficient: Tensor) -> list[Tensor] | list[None]:
        """Trajectories of each optimiser step; None: all."""
        group = forest.ids("group", axis="R")
        early = torch.tensor([origin == self.first for origin in forest.origin], dtype=torch.bool)
        if not bool(early.any()):
            parts = deal(group, self.minibatches)
            return parts if len(parts) > 1 else [None] * len(parts)
        moved = bool(coefficient[forest.to_path(early, "R")].any())
        kinds = [kind.nonzero().squeeze(1) for kind in ([early] if moved else []) + [~early]]
        return [rows[part] for rows in kinds for part in deal(dense(group[rows]), self.minibatches)]
