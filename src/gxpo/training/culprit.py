"""Which term of the objective, and which token, is steepest where a gradient is not finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gxpo.forest.forest import Forest
from gxpo.learning.accumulate import gradient_of
from gxpo.methods.method import Method


def largest_slope(
    method: Method,
    loss: Callable[[Mapping[str, Tensor], Method], Tensor],
    outputs: Mapping[str, Tensor],
    active: Tensor,
    forest: Forest,
) -> str:
    """In words: the largest derivative of one of the objective's terms in one of the policy's outputs.

    loss     from the outputs, of a method with a single term
    outputs  [P, ...] by name;   active [P] bool: where the loss reads them

    A derivative that is nan counts as infinite.
    """
    steepest, said = -1.0, "of no term"
    for term, part in method.terms.items():
        alone = replace(method, terms={term: part})
        x = {n: torch.where(active.view(-1, *[1] * (v.dim() - 1)), v, torch.zeros_like(v)) for n, v in outputs.items()}
        for name, slope in gradient_of(lambda live, alone=alone: loss(live, alone), x).items():
            size = slope.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).reshape(len(slope), -1).amax(1)
            if size.numel() and float(size.max()) > steepest:
                steepest, entry = float(size.max()), int(size.argmax())
                said = f"{steepest:.2g} of term {term!r} in {name} at {_place(forest, entry, x['logprob'])}"
    return said


def _place(forest: Forest, entry: int, logprob: Tensor) -> str:
    row = int(forest.path_trajectory[entry])
    token = entry - int((forest.path_trajectory == row).nonzero()[0]) + 1
    then = float(forest.path_behaviour_logprob[entry])
    return (
        f"token {token} of rollout {forest.id[row]!r} of task {forest.task[row]!r} "
        f"(log-prob {float(logprob[entry]):.4g}, {then:.4g} when sampled)"
    )
