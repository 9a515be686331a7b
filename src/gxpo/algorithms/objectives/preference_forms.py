"""Losses of preference pairs (DPO, IPO, SLiC, ORPO, KTO): pure functions of the two scores.

Each takes `better` and `worse` [n], scores that carry the gradient, and `beta` [n], and gives [n]. Keyword-only
parameters are what else it knows; the margin is h = better - worse.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gxpo.base.errors import GxpoError


def sigmoid(
    better: Tensor,
    worse: Tensor,
    beta: float | Tensor = 0.1,
    *,
    margin: float | Tensor = 0.0,
    label_smoothing: float | Tensor = 0.0,
    bias: float = 1.0,
) -> Tensor:
    """-(1 - e) log sigmoid(z) - e log sigmoid(-z), z = beta (better - bias worse) - margin.

    margin           what z has to exceed; a number or [n]
    label_smoothing  e, the chance that a label is wrong; a number or [n]
    bias             below 1 the worse one counts for less (CPL; for scores below 0, log-probs)

    dL/dh = -beta [(1 - e) sigmoid(-z) - e sigmoid(z)] where bias is 1. Sources: DPO, arXiv 2305.18290, eq. 7; e > 0:
    cDPO; margin: SimPO, arXiv 2405.14734; bias: CPL, arXiv 2310.13639.

    >>> sigmoid(torch.tensor([-0.8]), torch.tensor([-1.1]), 2.0, margin=1.0).item()
    0.9130152463912964
    """
    z = beta * (better - bias * worse) - margin
    return -(1 - label_smoothing) * logsigmoid(z) - label_smoothing * logsigmoid(-z)


def ipo(better: Tensor, worse: Tensor, beta: float | Tensor = 0.1) -> Tensor:
    """(h - 1 / (2 beta))^2: margins are pulled to a finite value, not to infinity. IPO, arXiv 2310.12036, eq. 17."""
    return (better - worse - 1 / (2 * beta)).square()


def hinge(better: Tensor, worse: Tensor, beta: float | Tensor = 0.1, *, margin: float | Tensor = 0.0) -> Tensor:
    """max(0, 1 - z), z = beta h - margin. SLiC, arXiv 2305.10425."""
    return (1 - (beta * (better - worse) - margin)).clamp_min(0)


def odds(better: Tensor, worse: Tensor, beta: float | Tensor = 0.1) -> Tensor:
    """-log sigmoid(beta (log odds of the better - log odds of the worse)), odds p / (1 - p), p = e^score.

    Scores are mean log-probs, below 0. ORPO, arXiv 2403.07691, eq. 6.
    """
    top = max((float(x.detach().max()) for x in (better, worse) if x.numel()), default=-1.0)
    if top > 0:
        raise GxpoError(f"objective.form 'odds' reads mean log-probs, and a score is {top:.3g}, above 0")
    return -logsigmoid(beta * (_log_odds(better) - _log_odds(worse)))


def _log_odds(logprob: Tensor) -> Tensor:
    """log p - log(1 - p); certainty is held 1e-12 below 1."""
    below = logprob.clamp_max(-1e-12)
    return below - (-below.expm1()).log()


def prospect(better: Tensor, worse: Tensor, beta: float | Tensor = 0.1) -> Tensor:
    """1 - sigmoid(beta h), bounded on both sides: what is far off is given up. KTO's value, arXiv 2402.01306, eq. 8."""
    return torch.sigmoid(-beta * (better - worse))


FORMS: Mapping[str, Callable[..., Tensor]] = {f.__name__: f for f in (sigmoid, ipo, hinge, odds, prospect)}


def options_of(form: str) -> frozenset[str]:
    """Names of what a form knows beside scores and beta."""
    given = inspect.signature(FORMS[form]).parameters.values()
    return frozenset(p.name for p in given if p.kind is p.KEYWORD_ONLY)
