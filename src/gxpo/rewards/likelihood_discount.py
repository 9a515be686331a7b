"""Correct answers are worth less, the likelier they were among those of their group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart
from gxpo.rewards.confidence import mean_logprob
from gxpo.rewards.length import verdicts


@torch.no_grad()
def rank_among(x: Tensor, group: Tensor, where: Tensor) -> Tensor:
    """[R] float64: how many counting members of the group lie below each member, ties (itself aside) by half.

    x [R]; group [R] int64 dense ids; where [R] bool, who counts; the others are placed among those.

    >>> where = torch.tensor([True, True, True, False])
    >>> rank_among(torch.tensor([0.1, 0.3, 0.3, 0.2]), torch.zeros(4).long(), where).tolist()
    [0.0, 1.5, 1.5, 1.0]
    """
    apart = levels.rank(x, group) - levels.rank(x, group, ~where)
    return torch.where(where, levels.rank(x, group, where), apart)


@dataclass(frozen=True)
class LikelihoodDiscount(RewardPart):
    """A new outcome: outcome (1 - beta rank / G) for a correct answer, the outcome as it is for a wrong one.

    rank is that of the mean log-prob of the answer's tokens under who sampled them, among the G compared answers of the
    group, wrong ones included; 0 is the least likely, and equal ones (to 1e-5 nats) share their mean rank.

    beta         the likeliest of many loses almost this share
    all_correct  also in groups in which all are correct, which then differ; False: those stay as they are

    Source: Rewarding the Unlikely, arXiv 2506.02355.
    """

    beta: float = 0.25
    all_correct: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ConfigError(f"likelihood_discount: beta is {self.beta}; it is a share, from 0 to 1")

    def __call__(self, forest: Forest) -> Tensor:
        correct, spoke = verdicts(forest, "likelihood_discount"), forest.lengths() > 0
        group, where = forest.ids("group", axis="R"), forest.scored & forest.compared & spoke
        likely = levels.settled(mean_logprob(forest, "likelihood_discount"), group, absolute=levels.FORWARD)
        rank = rank_among(likely, group, where)
        loses = correct & spoke
        if not self.all_correct:
            loses &= levels.min(correct, group, where) < 1
        share = rank / levels.count(group, where).clamp_min(1)
        return torch.where(loses, forest.outcome * (1.0 - self.beta * share), forest.outcome)
