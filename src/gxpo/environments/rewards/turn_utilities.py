"""Utilities of a team's turns: public goods, prices of calls."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gxpo.environments.rewards.team import Turn


def public_goods(
    outcome: float,
    turns: Sequence[Turn],
    *,
    cooperation: float = 0.3,
    share: float = 1.5,
    cost: float = 0.2,
    threshold: float = 2.0,
    penalty: float = 1.0,
) -> list[float]:
    """Utility of a turn in a sequential public-goods game (MAC-SPGG), c its contribution, the role's own reward.

    u_i = -cost effort_i + cooperation (c_1 + ... + c_{i-1}) + share C / n - penalty [C < threshold],   C = sum_j c_j

    effort is the turn's tokens over those of the attempt's longest turn.

    >>> [round(u, 6) for u in public_goods(1.0, [Turn("a", 0.6), Turn("b", 0.8), Turn("c", 0.9)])]
    [0.95, 1.13, 1.37]
    >>> round(public_goods(1.0, [Turn("a", 0.6), Turn("b", 0.8), Turn("c", 0.0, tokens=0)])[2], 6)
    0.12
    """
    contributions = [0.0 if math.isnan(t.reward) else t.reward for t in turns]
    total, most = sum(contributions), max([t.tokens for t in turns] + [1])
    common = share * total / len(turns) - penalty * (total < threshold)
    return [common + cooperation * sum(contributions[:i]) - cost * t.tokens / most for i, t in enumerate(turns)]


def call_price(outcome: float, turns: Sequence[Turn], *, free: int = 1, price: float = 0.1) -> list[float]:
    """Price of calls beyond the first `free` ones of an attempt, paid by the turn that made the call; else 0.

    >>> call_price(1.0, [Turn("main"), Turn("a", caller=0), Turn("b", caller=0), Turn("main")])
    [-0.1, 0.0, 0.0, 0.0]
    """
    prices = [0.0] * len(turns)
    for caller in [t.caller for t in turns if t.caller >= 0][free:]:
        prices[caller] -= price
    return prices
