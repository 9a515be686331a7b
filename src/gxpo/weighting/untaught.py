"""Trajectories that a teacher corrects token by token are left out of the policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def untaught(entropy: Tensor, trajectory: Tensor, n: int) -> Tensor:
    """[P] float64: 0 on all entries of a trajectory that has a teacher at any of its own, 1 on the others.

    entropy     [P] of the teacher, nan where there is none
    trajectory  [P] which of the `n` trajectories each entry belongs to

    >>> untaught(torch.tensor([float("nan"), 0.3, float("nan")]), torch.tensor([0, 0, 1]), 2).tolist()
    [0.0, 0.0, 1.0]
    """
    taught = torch.zeros(n, dtype=torch.bool)
    taught[trajectory[entropy.isfinite()]] = True
    return (~taught[trajectory]).to(torch.float64)


@dataclass(frozen=True)
class Untaught(WeightPart):
    """`untaught` by signal "teacher_entropy": with `distillation` over "all" beside it, every token is trained by one
    of the two, and both divide by the number of all tokens.

    Source: SRPO's routing (failures with a teacher to distillation, all others to the policy gradient).
    """

    needs = ("teacher_entropy",)

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        return untaught(signals["teacher_entropy"], forest.path_trajectory, forest.n_trajectories)
