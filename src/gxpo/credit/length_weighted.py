"""Length-weighted baselines (OPO, HAPO): group statistics weighted by trajectory length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gxpo import grouped
from gxpo.credit.base import CreditPart
from gxpo.credit.relative import group_relative
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def length_weighted(
    outcome: Tensor,
    length: Tensor,
    group: Tensor,
    where: Tensor | None = None,
    *,
    scale: str = "none",
    eps: float = 1e-6,
    bound: float = math.inf,
) -> Tensor:
    """A = outcome - b with b = sum_j L_j outcome_j / sum_j L_j over the compared members of the group.

    outcome  [R] any float dtype; the arithmetic is in float64
    length   [R] trainable tokens L of each trajectory, >= 0; a trajectory of length 0 does not move b
    group    [R] int64 dense ids, -1 = in no group
    where    [R] bool, compared (default: all); the others are measured against the compared members' b
    scale    "none" | "std": over sqrt(sum_j L_j (outcome_j - b)^2 / sum_j L_j) + eps, the population std of the group's
             tokens
    bound    of "std": a group in which any compared |A| reaches it has GRPO's advantage instead (`group_relative`)

    Returns [R] float64. Over the compared members sum_j L_j A_j = 0 (but where `bound` acts), and equal lengths give
    Dr. GRPO, or, scaled, GRPO with the population std. Unscaled, b minimises the variance of the policy gradient when
    the squared norm of a trajectory's score is proportional to its length. Exactly 0: a group of one, of equal
    outcomes, or without compared members.

    Source: OPO, arXiv 2505.23585, as in verl; it is exact only on policy: one update a batch. HAPO, arXiv 2509.16591,
    and its code ("std", bound 5).
    """
    enters = (length > 0) if where is None else (length > 0) & where
    members = grouped.count(group, enters)
    advantage = outcome.to(torch.float64) - grouped.mean(outcome, group, enters, weight=length)
    flat = grouped.degenerate(outcome, group, enters)
    counted = (group >= 0) & (members > 0) & ~(enters & flat)
    if scale == "none":
        return torch.where(counted, advantage, torch.zeros_like(advantage))
    spread = grouped.mean(advantage.square(), group, enters, weight=length).sqrt()
    scaled = torch.where(counted & ~flat, advantage / (spread + eps), torch.zeros_like(advantage))
    far = grouped.max((scaled.abs() >= bound).to(torch.float64), group, enters) > 0
    return torch.where(far, group_relative(outcome, group, where=enters), scaled)


@part("length_weighted", stage="credit")
@dataclass(frozen=True)
class LengthWeighted(CreditPart):
    """Length-weighted advantage of the outcome, the same for every token of a trajectory. Unscaled it is OPO's."""

    scale: Literal["none", "std"] = "none"
    eps: Annotated[float, Ge(0)] = 1e-6
    bound: Annotated[float, Gt(0)] = math.inf

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        given, how = (forest.outcome, forest.lengths(), forest.ids("group", axis="R"), forest.compared), vars(self)
        return forest.to_path(length_weighted(*given, **how), "R")
