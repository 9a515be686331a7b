"""Confidence penalty for wrong answers (LENS)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.environments.rewards.base import RewardPart
from gxpo.environments.rewards.shape import mean_logprob, verdicts
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part


@torch.no_grad()
def confidence_penalty(logprob: Tensor, correct: Tensor, group: Tensor, where: Tensor | None = None) -> Tensor:
    """-(1/G) p_i / (D - p_i) for a wrong answer, 0 for a correct one; [R] float64, in [-1/G, 0].

    p_i = exp(logprob_i), the geometric mean of the answer's token probabilities
    D   = max(D_imp, 2 max_j p_j), D_imp = 1 / ((1/G) sum over correct j of 1 / p_j); without a correct one 2 max_j p_j

    logprob  [R] mean log-prob of each answer's tokens
    correct  [R] bool;   group  [R] int64 dense ids, -1 = in no group
    where    [R] bool, compared (default: all): for G, D_imp and the maximum; for the others D is at least
             2 p_i too, so that their penalty has the same bound

    In log space: nothing under- or overflows, however improbable an answer. Source: LENS, arXiv 2510.08696, eq. 14-16.

    >>> p, wrong = torch.tensor([0.6, 0.5, 0.4, 0.3]), torch.zeros(4).bool()
    >>> confidence_penalty(p.log(), wrong, torch.zeros(4).long()).round(decimals=6).tolist()
    [-0.25, -0.178571, -0.125, -0.083333]
    """
    counting = group >= 0 if where is None else where & (group >= 0)
    x, right = logprob.to(torch.float64), correct & counting
    size = grouped.count(group, counting)
    top = grouped.max(-x, group, right)
    inverse = grouped.mean(torch.where(right, (-x - top).exp(), 0.0), group, counting)  # times e^top: mean of r / p
    implied = torch.where(inverse > 0, -(top + inverse.log()), -math.inf)
    most = torch.maximum(grouped.max(x, group, counting), x) + math.log(2.0)
    penalty = -1.0 / (size.clamp_min(1) * torch.expm1(torch.maximum(implied, most) - x))
    return torch.where(correct | (size == 0), torch.zeros_like(x), penalty)


@part("confidence_penalty", stage="reward")
@dataclass(frozen=True)
class ConfidencePenalty(RewardPart):
    """`confidence_penalty` (LENS), {"confidence": [R]}, to be added to the outcome; correctness is the verifier's.

    Groups in which all are wrong are then told apart by confidence; mean log-probs within 1e-5 nats are one.
    Trajectories without trained tokens lose nothing.
    """

    def __call__(self, forest: Forest) -> dict[str, Tensor]:
        correct, spoke = verdicts(forest, "confidence_penalty"), forest.lengths() > 0
        where = forest.scored & forest.compared & spoke
        group = forest.ids("group", axis="R")
        logprob = grouped.settled(mean_logprob(forest, "confidence_penalty"), group, absolute=grouped.FORWARD)
        value = confidence_penalty(logprob, correct | ~spoke, group, where)
        return {"confidence": torch.where(forest.scored, value, torch.nan)}
