"""Weights that turn from easy to hard groups as the policy gets better, and hold successes back until it is good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, one_of
from gxpo.weighting.base import WeightPart
from gxpo.weighting.verdicts import one_each, success_rate

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def difficulty_mix(rate: Tensor, accuracy: Tensor, easy: str = "one_minus_root", eps: float = 1e-6) -> Tensor:
    """w = (1 - M) / (2 (d + eps)) + M / (2 (sqrt(rate) + eps)), float64, shaped as `rate`.

    rate      share of the group's attempts that are correct
    accuracy  M, that share in the mean over groups; broadcast
    easy      what d is: "one_minus_root" 1 - sqrt(rate), or "root_of_rest" sqrt(1 - rate), the mirror of sqrt(rate)

    The first term weighs easy groups up, the second hard ones. 1 where rate is 0 or 1: one term has a pole there, which
    in a credit that is centred on the group multiplies 0.
    """
    mixed = (rate > 0) & (rate < 1)
    p = torch.where(mixed, rate.to(torch.float64), 0.5)
    rest = 1 - p.sqrt() if easy == "one_minus_root" else (1 - p).sqrt()
    weight = (1 - accuracy) / (2 * (rest + eps)) + accuracy / (2 * (p.sqrt() + eps))
    return torch.where(mixed, weight, 1.0)


@dataclass(frozen=True)
class DifficultyMix(WeightPart):
    """`difficulty_mix`, times min(1, M / full) on entries of positive credit: A-GRAE.

    full  accuracy M from which successes count in full
    easy  see `difficulty_mix`

    Rates are over compared trajectories, by verdict (without one: correct where the outcome is above 0); M is the mean
    of the step's groups that have any.

    Source: A-GRAE, arXiv 2602.05548; its code has "one_minus_root".
    """

    full: float = 1.0
    easy: Literal["one_minus_root", "root_of_rest"] = "one_minus_root"
    eps: float = 1e-6

    def __post_init__(self) -> None:
        one_of("weight.difficulty_mix.easy", self.easy, ("one_minus_root", "root_of_rest"))
        if not 0 < self.full <= 1:
            raise ConfigError(f"weight.difficulty_mix.full is {self.full}; it is an accuracy above 0, up to 1")
        if not self.eps >= 0:
            raise ConfigError(f"weight.difficulty_mix.eps is {self.eps}; it is at least 0")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        rate, group = success_rate(forest), forest.ids("group", axis="R")
        accuracy = levels.mean(rate, torch.zeros_like(group), one_each(group, forest.compared))
        weight = forest.to_path(difficulty_mix(rate, accuracy, self.easy, self.eps), "R")
        held = forest.to_path((accuracy / self.full).clamp_max(1.0), "R")
        return torch.where(credit > 0, weight * held, weight)
