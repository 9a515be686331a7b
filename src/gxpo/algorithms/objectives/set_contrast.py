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
    counted_trajectories,
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
    """Set-level contrast of each group, [R], the same for its members and 0 where all outcomes are equal.

    -log(sum_{Y+} e^(beta s + alpha |r - mean r|^power) / sum_Y e^(...)), Y+ the members above the group's mean outcome

    score, outcome [R]; group [R] int64 dense ids; where [R] bool: the members that count

    One better and one worse member with alpha 0: DPO's loss of that pair.
    """
    distance = outcome - grouped.mean(outcome, group, where)
    is_equal = grouped.degenerate(outcome, group, where)
    # with a margin: a member at the mean up to rounding is not better than it
    is_above = where & ~is_equal & (distance > grouped.DEGENERATE * outcome.abs())
    x = beta * score + alpha * distance.abs() ** power
    log_sum_all, log_sum_better = log_sum_exp(x, group, where), log_sum_exp(x, group, is_above)
    return torch.where(where & ~is_equal, log_sum_all - log_sum_better, torch.zeros_like(log_sum_all))


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
        counted_R = counted_trajectories(forest) & forest.compared
        return counted_R & ~grouped.degenerate(forest.outcome, forest.ids("group", axis="R"), counted_R)

    def loss(self, forest: Forest, policy: PolicyTokens, signals: Signals, x: Scores) -> tuple[Tensor, Figures]:
        loss_R = set_contrast(x.score, forest.outcome, x.group, x.run, self.beta, self.alpha, self.power)
        groups = max(1, int(torch.unique(x.group[counted_trajectories(forest)]).numel()))
        return over_groups(loss_R, x.group, x.run) / groups, {}
