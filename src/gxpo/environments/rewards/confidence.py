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
    """LENS penalty, -(1/G) p_i / (D - p_i) for a wrong answer, 0 for a correct one; [R] float64, in [-1/G, 0].

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
    counts = group >= 0 if where is None else where & (group >= 0)
    logprob_R, counted_correct = logprob.to(torch.float64), correct & counts
    # log D_imp by a stabilised log-mean-exp of 1/p over the correct answers: with `max_inverse_log` taken out the
    # largest term is 1.
    size = grouped.count(group, counts)
    max_inverse_log = grouped.max(-logprob_R, group, counted_correct)
    mean_inverse = grouped.mean(
        torch.where(counted_correct, (-logprob_R - max_inverse_log).exp(), 0.0), group, counts
    )  # times e^top: mean of r / p
    log_implied = torch.where(mean_inverse > 0, -(max_inverse_log + mean_inverse.log()), -math.inf)
    # The attempt itself is included, so that the bound holds for those that are not compared.
    log_twice_max = torch.maximum(grouped.max(logprob_R, group, counts), logprob_R) + math.log(2.0)
    # p / (D - p) = 1 / (D / p - 1), by expm1 of log D - log p, which keeps its digits where D is near p.
    penalty = -1.0 / (size.clamp_min(1) * torch.expm1(torch.maximum(log_implied, log_twice_max) - logprob_R))
    return torch.where(correct | (size == 0), torch.zeros_like(logprob_R), penalty)


@part("confidence_penalty", stage="reward")
@dataclass(frozen=True)
class ConfidencePenalty(RewardPart):
    """`confidence_penalty` (LENS), {"confidence": [R]}, to be added to the outcome; correctness is the verifier's.

    Wrong answers of an all-wrong group then differ by confidence; mean log-probs within 1e-5 nats are equal.
    Trajectories without trained tokens have no penalty.
    """

    def __call__(self, forest: Forest) -> dict[str, Tensor]:
        correct, has_tokens = verdicts(forest, "confidence_penalty"), forest.lengths() > 0
        where = forest.scored & forest.compared & has_tokens
        group = forest.ids("group", axis="R")
        # Equal answers whose log-probs differ by rounding of the forward pass must have equal penalties.
        logprob = grouped.settled(mean_logprob(forest, "confidence_penalty"), group, absolute=grouped.FORWARD)
        value = confidence_penalty(logprob, correct | ~has_tokens, group, where)
        return {"confidence": torch.where(forest.scored, value, torch.nan)}
