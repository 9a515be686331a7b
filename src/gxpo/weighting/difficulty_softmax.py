"""Weights that favour the harder tasks among those of a step that have anything to teach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def difficulty_softmax(rate: Tensor, group: Tensor, differ: Tensor, temperature: float = 2.0) -> Tensor:
    """w_q = S softmax_q(-rate_q / temperature) over the S groups that differ; 1 elsewhere. [R] float64.

    rate    [R] of the member's group: the share that succeeds; 0 counts as 1: such a group is thought too hard
    group   [R] int64 dense ids, -1 = in no group
    differ  [R] bool, of the member's group: its outcomes are not all equal

    Over the groups that differ the weights add up to S, each group counted once, whatever its size. Groups of equal
    rates, and a temperature that is large against 1, give 1.

    Source: DGPO, arXiv 2601.20614, and its code (DQW, temperature 2).
    """
    differ, one = differ & (group >= 0), torch.zeros_like(group)
    easy = torch.where(rate == 0, 1.0, rate.to(torch.float64))
    raised = (-(easy - levels.min(easy, one, differ)) / temperature).exp()
    share = 1.0 / levels.count(group).clamp_min(1)  # a group's members count as one
    mean = levels.mean(raised, one, differ, weight=share * differ)
    return torch.where(differ, raised / torch.where(mean > 0, mean, 1.0), 1.0)


@dataclass(frozen=True)
class DifficultySoftmax(WeightPart):
    """`difficulty_softmax`, the same for every token of a group.

    temperature  the smaller, the more the hardest task counts
    over_differing  further times tokens of the step / tokens of the groups that differ, so that a token mean is over
                 the latter: groups without credit do not dilute the step

    rate is the share of the group's compared trajectories whose `success` is 1; a trajectory without a verdict counts
    as a success where its outcome is above 0. Tokens are trainable ones; the batch is the step.
    """

    temperature: float = 2.0
    over_differing: bool = True

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ConfigError(f"weight.difficulty_softmax.temperature is {self.temperature}; it is above 0, such as 2")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        group, compared = forest.ids("group", axis="R"), forest.compared
        correct = torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0)
        differ = ~levels.degenerate(forest.outcome, group, compared) & (group >= 0)
        weight = difficulty_softmax(levels.mean(correct, group, compared), group, differ, self.temperature)
        tokens = forest.lengths().to(torch.float64)
        if self.over_differing and bool((tokens * differ).any()):
            weight = weight * (tokens.sum() / (tokens * differ).sum())
        return forest.to_path(weight, "R")
