"""gxpo's own objectives as an implementation for the golden losses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.methods import METHODS
from gxpo.methods.compose import method
from gxpo.parts.protocols import PolicyTokens


def loss(
    objective: str,
    logprobs: Sequence[float],
    old: Sequence[float],
    advantages: Sequence[float],
    rows: Sequence[int],
    aggregate: str,
    **constants: Any,
) -> tuple[float, list[float]]:
    """Value and gradient of the policy term of `gxpo.method(objective)`.

    Raises NotImplementedError where gxpo lacks the method, a constant, or refuses the aggregation.
    """
    if objective not in METHODS:
        raise NotImplementedError(f"gxpo has no method {objective}")
    keys = {f"objective.{k}": float(v) if isinstance(v, (int, float)) else v for k, v in constants.items()}
    try:
        made = method(objective, {"objective.aggregate": aggregate, **keys})
    except ConfigError as error:
        raise NotImplementedError(str(error)) from None
    lengths = [len(list(run)) for _, run in groupby(rows)]
    forest = Forest.from_completions([[1]] * len(lengths), [[[2] * n] for n in lengths], [[0.0]] * len(lengths))
    x = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    policy = PolicyTokens(x, torch.tensor(old, dtype=torch.float64))
    credit = torch.tensor(advantages, dtype=torch.float64)
    value, _ = made.terms["policy"](forest, policy, credit, torch.ones_like(credit), {}, 0)
    (slope,) = torch.autograd.grad(value, x)
    return float(value.detach()), slope.tolist()
