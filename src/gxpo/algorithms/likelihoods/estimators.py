"""One-step, evidence-bound, coupled and trajectory estimates of an answer's log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.algorithms.likelihoods.base import Answer, Likelihood
from gxpo.base.errors import ConfigError
from gxpo.parts.registry import part

Share = Annotated[float, Interval(ge=0, le=1)]
Count = Annotated[int, Ge(1)]
MOST_ENUMERATED = 8  # tokens of an answer of which all subsets are read


def _views(answer: Answer, hidden: np.ndarray, weight: np.ndarray) -> tuple[Tensor, Tensor]:
    """Views that hide part of the answer and nothing of the prompt; those that read nothing are left out."""
    has_weight = weight.any(1)
    prompt = np.zeros((int(has_weight.sum()), answer.prompt), dtype=bool)
    return torch.from_numpy(np.concatenate([prompt, hidden[has_weight]], 1)), torch.from_numpy(weight[has_weight])


def _subset(answer: Answer, random: np.random.Generator, count: int) -> np.ndarray:
    """A uniform set of `count` of the answer's tokens, [n] bool."""
    is_in_subset = np.zeros(answer.length, dtype=bool)
    is_in_subset[random.permutation(answer.length)[:count]] = True
    return is_in_subset


@part("one_step", stage="likelihood")
@dataclass(frozen=True)
class OneStep(Likelihood):
    """One-step estimate: the whole answer is hidden, and its tokens are read as if independent (diffu-GRPO).

    prompt_mask  probability with which each token of the prompt is hidden as well; the same tokens for a rollout as
                 long as it is trained on, under the old and the reference policy too

    One forward pass. Exact for an answer of one token (without `prompt_mask`); of longer ones it is a mean-field
    approximation, without variance where the prompt is whole. Source: d1, arXiv 2504.12216, and its code (0.15), which
    draws new tokens of the prompt for each optimiser step.
    """

    prompt_mask: Share = 0.15

    def views(self, answer: Answer) -> tuple[Tensor, Tensor]:
        prompt = answer.random().random(answer.prompt) < self.prompt_mask
        hidden = np.concatenate([prompt, np.ones(answer.length, dtype=bool)])
        return torch.from_numpy(hidden[None]), torch.ones(1, answer.length, dtype=torch.float64)


NODES = {"gauss": None, "simpson": ((0.1, 0.5, 1.0), (1 / 6, 4 / 6, 1 / 6))}


@part("elbo", stage="likelihood")
@dataclass(frozen=True)
class Elbo(Likelihood):
    """Evidence lower bound: the mean over orders of an answer's factorisation, from masks of random sets of its tokens.

    L(y) = int_0^1 E_{M: each token with probability t} [1/t sum_{i in M} log p(y_i | y outside M)] dt
         = sum_{m=1}^n 1/m mean_{|M| = m} sum_{i in M} log p(y_i | y outside M)   <=   log p(y), random orders

    rule        how m, the number of hidden tokens, is chosen:
                "uniform"  drawn from 1..n, weight n / m: unbiased
                "gauss"    m = round(t n), at least 1, at the Gauss-Legendre nodes t of [0, 1], weight w_t / t (GDPO's
                           semi-deterministic estimate); "simpson": at 0.1, 0.5 and 1. Rounding biases short answers
                "exact"    all sets of tokens, for answers of up to 8
    points      draws of m, or nodes;   masks  sets of tokens at each of them
    antithetic  of "uniform": every second set is what the one before it shows; m is then drawn from 0..n: unbiased

    points * masks forward passes. Source: GDPO, arXiv 2510.08554; DMPO, arXiv 2510.08233.
    """

    rule: Literal["uniform", "gauss", "simpson", "exact"] = "gauss"
    points: Count = 2
    masks: Count = 1
    antithetic: bool = False

    def __post_init__(self) -> None:
        if self.antithetic and (self.rule != "uniform" or self.points * self.masks % 2):
            raise ConfigError(
                "likelihood.antithetic pairs random masks: set likelihood.rule=uniform and an even likelihood.points"
            )

    def views(self, answer: Answer) -> tuple[Tensor, Tensor]:
        if self.rule == "exact":
            return self._every_set(answer)
        random, n = answer.random(), answer.length
        hidden: list[np.ndarray] = []
        weight: list[float] = []
        if self.antithetic:
            pairs = self.points * self.masks // 2
            for m in random.integers(0, n + 1, size=pairs):
                is_hidden = _subset(answer, random, int(m))
                hidden += [is_hidden, ~is_hidden]
                # each count of 1..n comes up with probability 2 / (n + 1) in a pair
                weight += [(n + 1) / (2 * pairs * max(1, int(x.sum()))) for x in (is_hidden, ~is_hidden)]
        else:
            for m, w in self._counts(n, random):
                hidden += [_subset(answer, random, m) for _ in range(self.masks)]
                weight += [w / self.masks] * self.masks
        stacked = np.stack(hidden)
        return _views(answer, stacked, stacked * np.asarray(weight)[:, None])

    def _counts(self, n: int, random: np.random.Generator) -> list[tuple[int, float]]:
        """Numbers of hidden tokens, each with the weight of their log-probabilities."""
        if self.rule == "uniform":
            return [(int(m), n / (int(m) * self.points)) for m in random.integers(1, n + 1, size=self.points)]
        nodes, weights = NODES["simpson"] or ((), ())
        if self.rule == "gauss":
            x, w = np.polynomial.legendre.leggauss(self.points)
            nodes, weights = (x + 1) / 2, w / 2
        return [(max(1, round(float(t) * n)), float(w) / float(t)) for t, w in zip(nodes, weights, strict=True)]

    def _every_set(self, answer: Answer) -> tuple[Tensor, Tensor]:
        n = answer.length
        if n > MOST_ENUMERATED:
            raise ConfigError(
                f"likelihood.rule=exact reads all sets of an answer's tokens, up to {MOST_ENUMERATED} of them, and one "
                f"has {n}: lower sampling.max_new_tokens, or set likelihood.rule=uniform"
            )
        sets = [subset for m in range(1, n + 1) for subset in combinations(range(n), m)]
        hidden = np.zeros((len(sets), n), dtype=bool)
        for row, subset in zip(hidden, sets, strict=True):
            row[list(subset)] = True
        return _views(answer, hidden, hidden * np.asarray([1 / (len(s) * comb(n, len(s))) for s in sets])[:, None])


@part("coupled", stage="likelihood")
@dataclass(frozen=True)
class Coupled(Likelihood):
    """Coupled estimate: two complementary masks, in which every token is read once, and the whole answer hidden.

    x_i = scale (log p(y_i | prompt) + 1/t log p(y_i | y outside M)) / 3,     i in M, each with probability t
    x_i = scale (log p(y_i | prompt) + 1/(1-t) log p(y_i | y in M)) / 3,      i not in M;      t ~ U(low, high)

    low, high  bounds of t, symmetric about 1/2
    scale      1: of the size of a log-likelihood; 1.5: as in the authors' code, which divides the sum by 2

    Three forward passes. On an answer of one token its mean over masks is exact. Source: coupled-GRPO (DiffuCoder),
    arXiv 2506.20639, and its code.
    """

    low: Share = 0.2
    high: Share = 0.8
    scale: Annotated[float, Gt(0)] = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.low <= self.high < 1 and abs(self.low + self.high - 1) < 1e-9):
            raise ConfigError(
                f"likelihood.low={self.low:g} and high={self.high:g} are symmetric about 0.5: set high to 1 - low"
            )

    def views(self, answer: Answer) -> tuple[Tensor, Tensor]:
        random, n = answer.random(), answer.length
        t = random.uniform(self.low, self.high)
        is_hidden = random.random(n) < t
        hidden = np.stack([np.ones(n, dtype=bool), is_hidden, ~is_hidden])
        return _views(answer, hidden, hidden * np.asarray([1.0, 1 / t, 1 / (1 - t)])[:, None] * self.scale / 3)


@part("trajectory", stage="likelihood")
@dataclass(frozen=True)
class TrajectoryLikelihood(Likelihood):
    """Trajectory likelihood: every token in the very state and step in which the decoder unmasked it.

    x_i = log p(y_i | what was visible before the step that unmasked i)

    A forward pass for each step of the decoder, as in sampling; no variance. It is the likelihood of the tokens given
    the order in which they were unmasked: exact where the order is not chosen by what is drawn. Source: CJ-GRPO, arXiv
    2509.23924, and its code.
    """

    def views(self, answer: Answer) -> tuple[Tensor, Tensor]:
        steps = answer.unmasked_at.unique()[:, None]
        hidden = (answer.unmasked_at >= steps).numpy()
        return _views(answer, hidden, (answer.unmasked_at == steps).to(torch.float64).numpy())
