"""Figures of teams and sets of models: influence, certified success, payoffs less risk, normalised means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from gxpo.base.errors import ConfigError


def influence(clean: Sequence[float], attacked: Sequence[float]) -> float:
    """Influence of an adversary on another agent's next action: KL(clean || attacked) in nats of its distributions.

    The attack of adversarial minority influence (AMI, arXiv 2302.03322) maximises it towards an
    action of the victim's that serves it worst. Infinite where an action that was possible no longer is.

    >>> round(influence([0.7, 0.2, 0.1], [0.5, 0.3, 0.2]), 6)
    0.085123
    """
    for name, x in (("clean", clean), ("attacked", attacked)):
        if len(clean) != len(attacked) or min(x, default=-1.0) < 0 or abs(math.fsum(x) - 1) > 1e-6:
            raise ConfigError(f"influence: `{name}` is no distribution over the same actions as the other")
    if any(q == 0 < p for p, q in zip(clean, attacked, strict=True)):
        return math.inf
    return math.fsum(p * math.log(p / q) for p, q in zip(clean, attacked, strict=True) if p > 0)


def risk_adjusted(payoff: Sequence[Sequence[float]], mixture: Sequence[float], aversion: float) -> list[float]:
    """Value of each row's strategy against a mixture of opponents, mean - aversion * variance of its payoffs (RAE).

    >>> risk_adjusted([[3.0, 0.0], [1.5, 1.5]], [0.5, 0.5], 1.0)
    [-0.75, 1.5]
    """
    out = []
    for row in payoff:
        mean = math.fsum(p * x for p, x in zip(mixture, row, strict=True))
        variance = math.fsum(p * (x - mean) ** 2 for p, x in zip(mixture, row, strict=True))
        out.append(mean - aversion * variance)
    return out


def certified_success(rate: float, sigma: float, radius: float) -> float:
    """Success rate that Gaussian smoothing certifies within a radius, of numbers: Phi(Phi^-1(rate) - radius / sigma).

    `rate` is that under noise of standard deviation `sigma` (policy smoothing, Kumar et al. 2022), best the lower end
    of its interval. Texts have no such radius: `env.corrupt` is a probe.

    >>> round(certified_success(0.9, 0.2, 0.1), 6), round(certified_success(0.9, 0.2, 0.3), 6)
    (0.782761, 0.41354)
    """
    if not (0 < rate < 1 and sigma > 0 and radius >= 0):
        raise ConfigError(f"a rate between 0 and 1 and a sigma above 0 are needed, not {rate} and {sigma}")
    normal = NormalDist()
    return normal.cdf(normal.inv_cdf(rate) - radius / sigma)


def harmonic_of_normalised(scores: Sequence[Sequence[float]]) -> list[float]:
    """Harmonic mean of min-max normalised metrics of each model (MMHM); higher is better in every metric.

    A model that is the worst in one metric has 0, and all values change with the set of models: compare only within it.

    >>> harmonic_of_normalised([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    [0.0, 0.5, 0.0]
    """
    columns = list(zip(*scores, strict=True))
    spans = [(min(c), max(c) - min(c)) for c in columns]
    rows = [[(x - low) / span if span else 1.0 for x, (low, span) in zip(row, spans, strict=True)] for row in scores]
    return [len(row) / math.fsum(1 / x for x in row) if min(row) > 0 else 0.0 for row in rows]
