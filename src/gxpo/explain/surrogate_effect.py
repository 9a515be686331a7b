"""Gradient weight of a method's surrogate by importance ratio."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.algorithms.objectives import PolicyGradient
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.methods.method import Method
from gxpo.parts.protocols import PolicyTokens

SAMPLED, ENTROPY, MOST = 0.2, 0.5, 4.0  # probability when sampled, nats, the largest ratio that is tried
RATIOS = tuple(i / 50 for i in range(1, 201))  # 0.02, 0.04, ... 4
TOLD = (0.1, 0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0)  # those with their weights on the page


@dataclass(frozen=True)
class SurrogateEffect:
    """Gradient weights at `RATIOS`: -dL/dlogprob over the advantage, for advantages of 1 and -1.

    1 is REINFORCE's weight, rho that of the unclipped ratio; 0: the token moves nothing; below 0: it is pulled back.
    """

    rising: tuple[float, ...]
    falling: tuple[float, ...]

    def same_as(self, other: SurrogateEffect) -> bool:
        pairs = zip((*self.rising, *self.falling), (*other.rising, *other.falling), strict=True)
        return all(abs(a - b) <= 1e-9 * (1 + abs(b)) for a, b in pairs)


def weights(made: Method, ratios: tuple[float, ...], credit: float) -> list[float]:
    """-dL/dlogprob / advantage at each ratio, by autograd through the method's policy term.

    Every ratio is a trajectory of one token, sampled with probability `SAMPLED`; the weight parts are left out.
    """
    filled = made.fill(horizon=1.0).terms["policy"]
    apart = filled.couples not in ("token", "trajectory")
    found: list[float] = []
    for some in [(x,) for x in ratios] if apart else [ratios]:
        found += _slope(filled, torch.tensor(some, dtype=torch.float64), credit).tolist()
    return found


def _slope(term: PolicyGradient, ratio: Tensor, credit: float) -> Tensor:
    n = len(ratio)
    forest = Forest.from_completions([[1]] * n, [[[2]]] * n, [[0.0]] * n)
    old = torch.full((n,), SAMPLED, dtype=torch.float64).log()
    logprob = (old + ratio.log()).requires_grad_()
    ones = torch.ones_like(ratio)
    policy = PolicyTokens(logprob, old, old, ENTROPY * ones, proximal_logprob=old)
    value, _ = term(forest, policy, credit * ones, ones, Signals.of(forest, {"entropy": ENTROPY * ones}, {}), 0)
    return -torch.autograd.grad(value, logprob)[0] * n / credit  # n: every aggregation is a mean over n tokens here


def surrogate_effect(made: Method) -> SurrogateEffect | str:
    """The curves for both signs of the advantage, or why they can't be drawn."""
    term = made.terms["policy"]
    if not isinstance(term, PolicyGradient):
        return "it is no sum over single tokens"
    if term.read_scope == "step":
        return "what one token weighs depends on all tokens of the step"
    try:
        return SurrogateEffect(*(tuple(weights(made, RATIOS, credit)) for credit in (1.0, -1.0)))
    except GxpoError as error:
        return str(error)
