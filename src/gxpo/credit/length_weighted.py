"""Credit against the baseline of least variance: the group's mean outcome, weighted by length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def length_weighted(outcome: Tensor, length: Tensor, group: Tensor, where: Tensor | None = None) -> Tensor:
    """A = outcome - b with b = sum_j L_j outcome_j / sum_j L_j over the compared members of the group.

    outcome  [R] any float dtype; the arithmetic is in float64
    length   [R] trainable tokens L of each trajectory, >= 0; a trajectory of length 0 does not move b
    group    [R] int64 dense ids, -1 = in no group
    where    [R] bool, compared (default: all); the others are measured against the compared members' b

    Returns [R] float64, not scaled. Over the compared members sum_j L_j A_j = 0, and equal lengths give Dr. GRPO.
    b minimises the variance of the policy gradient when the squared norm of a trajectory's score is proportional to
    its length. Exactly 0: a group of one, of equal outcomes, or without compared members.

    Source: OPO, arXiv 2505.23585; as in verl. OPO is exact only on policy: one update a batch.
    """
    enters = (length > 0) if where is None else (length > 0) & where
    members = levels.count(group, enters)
    advantage = outcome.to(torch.float64) - levels.mean(outcome, group, enters, weight=length)
    equal = enters & levels.degenerate(outcome, group, enters)
    return torch.where((group >= 0) & (members > 0) & ~equal, advantage, torch.zeros_like(advantage))


@dataclass(frozen=True)
class LengthWeighted(CreditPart):
    """`length_weighted` of the outcome (OPO), the same for every token of a trajectory."""

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        return forest.to_path(length_weighted(forest.outcome, forest.lengths(), group, where=forest.compared), "R")
