"""Correct answers count more where the policy held them to be less likely than the rest of their group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.weighting.base import WeightPart
from gxpo.weighting.trajectory import counting, trajectory_mean
from gxpo.weighting.verdicts import correct

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def likelihood_ratio(logprob: Tensor, group: Tensor, where: Tensor) -> Tensor:
    """eta_i = exp(s_i - mean s) within the group; below 1: rarer than the others. [R] float64; 1 where nobody counts.

    logprob [R] s, mean log-prob of each answer's tokens; group [R] int64 dense ids; where [R] bool, who is averaged
    """
    s = logprob.to(torch.float64)
    return torch.where(levels.count(group, where) > 0, (s - levels.mean(s, group, where)).exp(), 1.0)


@torch.no_grad()
def novelty(credit: Tensor, eta: Tensor, eligible: Tensor, strength: float = 2.5, cap: float = 0.5) -> Tensor:
    """w = 1 + min(max(strength (1 - eta), 0) / A, cap) where eligible and A > 0, else 1; [n] float64, in [1, 1 + cap].

    So w A = A + min(max(strength (1 - eta), 0), cap A).

    credit, eta [n]; eligible [n] bool: of correct answers. A wrong answer keeps its credit however rare it was.

    >>> eta, right = torch.tensor([0.84, 1.2, 0.5]), torch.tensor([True, True, False])
    >>> novelty(torch.tensor([1.0, 1.0, -1.0]), eta, right).round(decimals=6).tolist()
    [1.4, 1.0, 1.0]
    """
    sharpened, a = eligible & (credit > 0), credit.to(torch.float64)
    bonus = (strength * (1.0 - eta.to(torch.float64))).clamp_min(0.0) / torch.where(sharpened, a, 1.0)
    return 1.0 + torch.where(sharpened, bonus.clamp_max(cap), 0.0)


@dataclass(frozen=True)
class Novelty(WeightPart):
    """`novelty` of correct answers by `likelihood_ratio` under the policy at the start of the step.

    strength  credit per unit of 1 - eta, in units of the credit
    cap       the weight is at most 1 + cap

    The mean is over the group's compared answers, right and wrong. Source: XRPO, arXiv 2510.06672.
    """

    strength: float = 2.5
    cap: float = 0.5

    def __post_init__(self) -> None:
        if not (self.strength >= 0 and self.cap >= 0):
            raise ConfigError(f"weight.novelty.strength ({self.strength}) and .cap ({self.cap}) are 0 or more")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        logprob = trajectory_mean(forest, signals, "proximal_logprob")
        eta = likelihood_ratio(logprob, forest.ids("group", axis="R"), counting(forest))
        eligible = forest.to_path(correct(forest), "R")
        return novelty(credit, forest.to_path(eta, "R"), eligible, self.strength, self.cap)
