"""Losses and slopes of the surrogates, token by token in plain Python, on random ratios and advantages."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.by_position import (
    DivergenceMask,
    Drift,
    Gamma,
    PreservingClip,
    QuadraticPenalty,
    RatioMask,
    RatioTarget,
    Sigmoid,
    Tapered,
)

from gxpo.algorithms.objectives import Entries
from gxpo.algorithms.objectives.surrogate_penalties import RatioVariance

Token = tuple[float, float, float]  # ratio, credit, log-prob below
ByHand = Callable[[float, float, float], tuple[float, float]]  # value, and slope in the token's log-prob


def quadratic(coefficient: Callable[[float], float]) -> ByHand:
    def loss(rho, a, below):
        c = coefficient(a)
        return -a * rho + c * (rho - 1) ** 2, -rho * (a - 2 * c * (rho - 1))

    return loss


def drift(rho, a, below):
    s = 2.5 if a > 0 else 0.7
    z = (rho - 1) * a if a > 0 else math.log(rho) * a
    if z <= 0:
        return -a * rho, -a * rho
    fade = math.tanh(z / s) ** 2
    return z - s * math.tanh(z / s) - a * rho, -a * rho + fade * (a * rho if a > 0 else a)


def target(rho, a, below):
    best = 1.3 if a > 0 else 0.9
    away = (rho > best) - (rho < best)
    return abs(a) * abs(rho - best), abs(a) * away * rho


def sigmoid(rho, a, below):
    tau = 0.8 if a > 0 else 1.2
    z = tau * (rho - 1)
    p = 1 / (1 + math.exp(-z)) if z < 700 else 1.0
    return -a * 4 / tau * p, -a * 4 * p * (1 - p) * rho if z < 30 else 0.0


def preserving(rho, a, below):
    if a > 0 and rho > 1.3:
        return -a * 0.5 * 1.3, -a * 0.5 * 1.3
    if a < 0 and rho < 0.9:
        return -a * 0.75 * 0.9, -a * 0.75 * 0.9
    if a < 0 and rho > 4.0:
        return -a * 4.0, 0.0
    return -a * rho, -a * rho


def detached(weight: Callable[[float, float, float], float]) -> ByHand:
    def loss(rho, a, below):
        w = weight(rho, a, below)
        return -w * a * (below + math.log(rho)), -w * a

    return loss


def gamma(rho, a, below):
    k, decay = (2.0, 3.0) if a > 0 else (1.5, 0.5)
    return rho**k * math.exp(decay * (1 - rho)) if rho < 200 else 0.0


def by_kl(rho, a, below):
    q, p = math.exp(below), math.exp(below) * rho
    kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    out = (a > 0 and p > q and kl > 0.05) or (a < 0 and p < q and kl > 0.02)
    return 0.0 if out else min(rho, 3.0)


def by_tv(rho, a, below):
    moved = math.exp(below) * (rho - 1)
    return 0.0 if (a > 0 and moved > 0.1) or (a < 0 and moved < -0.3) else min(rho, 3.0)


def ring(rho, a, below):
    inside = 0.9 <= rho <= 1.3
    back = rho <= 0.5 if a > 0 else rho >= 2.5
    return min(rho, 4.0) if inside or back else 0.0


CASES = {
    "spo": (QuadraticPenalty(0.3), quadratic(lambda a: abs(a) / 0.6)),
    "r2vpo": (RatioVariance(penalty=0.7), quadratic(lambda a: 0.7 if a else 0.0)),
    "discovered": (Drift(2.5, 0.7), drift),
    "bpo": (RatioTarget(0.1, 0.3), target),
    "sapo": (Sigmoid(0.8, 1.2), sigmoid),
    "ce-gppo": (PreservingClip(0.1, 0.3, 0.75, 0.5, 4.0), preserving),
    "topr": (Tapered(1.5), detached(lambda rho, a, below: 1.0 if a > 0 else min(rho, 1.5))),
    "vespo": (Gamma(2.0, 3.0, 1.5, 0.5), detached(gamma)),
    "dppo-tv": (DivergenceMask("tv", 0.3, 0.1, 3.0), detached(by_tv)),
    "dppo-kl": (DivergenceMask("kl", 0.02, 0.05, 3.0), detached(by_kl)),
    "rec-one": (
        RatioMask("one", "none", 0.1, 0.3),
        detached(lambda rho, a, below: float(rho <= 1.3 if a > 0 else rho >= 0.9)),
    ),
    "rec-two": (RatioMask("two", "none", 0.1, 0.3), detached(lambda rho, a, below: float(0.9 <= rho <= 1.3))),
    "rec-ring": (RatioMask("ring", "ratio", 0.1, 0.3, 0.5, 1.5, 4.0), detached(ring)),
}

RATIO = st.one_of(st.floats(-14, 14).map(math.exp), st.floats(0.3, 3.0))
TOKEN = st.tuples(RATIO, st.sampled_from([-3.0, -1.0, -0.2, 0.0, 0.5, 1.0, 2.5]), st.floats(-25.0, -0.05))


def probability(token: Token) -> float:
    return math.log(token[0]) + token[2]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60)
@given(tokens=st.lists(TOKEN.filter(lambda t: probability(t) < -0.01), min_size=1, max_size=6))
def test_value_and_slope(name: str, tokens: list[Token]) -> None:
    surrogate, by_hand = CASES[name]
    exact, credit, below = torch.tensor(tokens, dtype=torch.float64).unbind(1)
    logprob = (below + exact.log()).requires_grad_()
    change, row_ids = logprob - logprob.detach(), torch.arange(len(exact))
    x = Entries(logprob, below, exact.log() + change, exact * change.exp(), credit, row_ids, row_ids)
    loss = surrogate.loss(x)
    (slope,) = torch.autograd.grad(loss.sum(), logprob)
    for i, token in enumerate(tokens):
        value, expected = by_hand(*token)
        assert float(loss[i].detach()) == pytest.approx(value, rel=1e-9, abs=1e-12)
        assert float(slope[i]) == pytest.approx(expected, rel=1e-7, abs=1e-9)
