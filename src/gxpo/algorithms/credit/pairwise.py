"""Pairwise AUC advantages (CAPO, calibration): every correct answer against every wrong one, by likelihood."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from gxpo.forest.grouped import begins_of, repeated, runs_of
from gxpo.parts.registry import part


@part("pairwise_auc", stage="credit")
def pairwise_auc(
    mean_behaviour_logprob: Tensor,
    correct: Tensor,
    group: Tensor,
    acts: Tensor | None = None,
    *,
    tau: Annotated[float, Gt(0)] = 0.6,
) -> Tensor:
    """Pairwise AUC advantage (CAPO, calibration) of mean log-probs: confident mistakes and unsure successes weigh most.

    A_i = sum over wrong j of s(l_j - l_i) if i is correct, -sum over correct j of s(l_i - l_j) if it is wrong.

    s(t) = sigmoid(t / tau) / tau: minus the derivative of the logistic loss log(1 + e^(-t / tau)) of a pair, whose
    sum over pairs is the logistic surrogate of the area under the ROC curve.

    mean_behaviour_logprob  [R] l, the sampler's mean log-prob of each answer's tokens
    correct  [R] bool: the verdict; without one, an outcome above 0
    group    [R] int64 dense ids, -1 = in no group
    acts     [R] bool, compared and with tokens (default: all): opponents; the others are compared with them as well

    [R] float64, summing to 0 over a group of compared members; 0 in groups without both. Time and memory are of the
    number of pairs. tau to infinity, times 2 tau / G: outcome - mean. Source: arXiv 2604.12632.

    >>> l, right = torch.tensor([-0.2, -0.6, -0.4]), torch.tensor([True, True, False])
    >>> [round(a, 6) for a in pairwise_auc(l, right, torch.zeros(3).long(), tau=0.5).tolist()]
    [0.802625, 1.197375, -2.0]
    """
    counting = group >= 0 if acts is None else acts & (group >= 0)
    side, x = correct.to(torch.int64), mean_behaviour_logprob.to(torch.float64)
    own, rival = 2 * group + side, 2 * group + 1 - side
    n_sides = 2 * (int(group.max()) + 1) if group.numel() else 0
    others = counting.nonzero().squeeze(1)
    others = others[torch.argsort(own[others], stable=True)]
    begins = begins_of(own[others], n_sides)
    rows = (group >= 0).nonzero().squeeze(1)
    i = repeated(rows, begins.diff()[rival[rows]])
    j = others[runs_of(begins, rival[rows])]
    sign = 2.0 * side[i] - 1.0
    pull = sign * torch.sigmoid(-sign * (x[i] - x[j]) / tau) / tau
    return torch.zeros_like(x).index_add_(0, i, pull)
