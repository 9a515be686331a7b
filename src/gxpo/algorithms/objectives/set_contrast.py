"""Set-level preference loss (MPO, formerly SWEPO): the better half of a group against all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.algorithms.objectives.sequence_score import (
    Figures,
    ScoreOver,
    Scores,
    SequenceLoss,
    counted,
    log_sum_exp,
    over_groups,
)
from gxpo.algorithms.objectives.surrogate import Positive, Width
from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


def set_contrast(
    score: Tensor,
    outcome: Tensor,
    group: Tensor,
    where: Tensor,
    beta: float = 0.1,
    alpha: float = 1.0,
    power: float = 1.0,
) -> Tensor:
    """Loss of each group, [R], the same for its members and 0 where all outcomes are equal:

    -log(sum_{Y+} e^(beta s + alpha |r - mean r|^power) / sum_Y e^(...)), Y+ the members above the group's mean outcome

    score, outcome [R]; group [R] int64 dense ids; where [R] bool: the members that count

    One better and one worse member with alpha 0: DPO's loss of that pair.
    """
    apart = outcome - grouped.mean(outcome, group, where)
    alike = grouped.degenerate(outcome, group, where)
    above = where & ~alike & (apart > grouped.DEGENERATE * outcome.abs())
    x = beta * score + alpha * apart.abs() ** power
    whole, better = log_sum_exp(x, group, where), log_sum_exp(x, group, above)
    return torch.where(where & ~alike, whole - better, torch.zeros_like(whole))


@part("set_contrast", stage="term")
@dataclass(frozen=True)
class SetContrast(SequenceLoss):
    """Set-level contrast (MPO): mean over groups of `set_contrast` of the outcomes.

    beta     of the scores, log policy / reference
    alpha    of a member's distance from the mean outcome: those far from it weigh more, on both sides
    power    of that distance

    Members that are not compared are left out. Groups of equal outcomes give 0 and count.
    """

    beta: Positive = 0.1
    alpha: Width = 1.0
    power: Positive = 1.0
    ratio_over: ScoreOver = field(default="reference", kw_only=True)

    def reads(self, forest: Forest) -> Tensor:
        """Compared trajectories of groups whose outcomes differ."""
        own = counted(forest) & forest.compared
        return own & ~grouped.degenerate(forest.outcome, forest.ids("group", axis="R"), own)

    def loss(self, forest: Forest, policy: PolicyTokens, signals: Signals, x: Scores) -> tuple[Tensor, Figures]:
        each = set_contrast(x.score, forest.outcome, x.group, x.run, self.beta, self.alpha, self.power)
        groups = max(1, int(torch.unique(x.group[counted(forest)]).numel()))
        return over_groups(each, x.group, x.run) / groups, {}
