"""Mean log-probability of answers under the sampling policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import MissingSignal
from gxpo.trees import begins_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


def answer_logprob(forest: Forest, signals: Signals) -> tuple[Tensor, Tensor]:
    """Sampler's log-prob of every trainable action token, [n] float64, and its trajectory, [n].

    Raises MissingSignal where it is unknown.
    """
    entries = forest.path_trainable.nonzero().squeeze(1)
    logprob = signals["behaviour_logprob"][entries].to(torch.float64)
    if missing := int(logprob.isnan().sum()):
        raise MissingSignal(
            f"behaviour_logprob is nan for {missing} of {entries.numel()} trained tokens: record `logprob` for them"
        )
    return logprob, forest.path_trajectory[entries]


@torch.no_grad()
def mean_of_lowest(x: Tensor, trajectory: Tensor, n: int, share: float = 1.0) -> Tensor:
    """Mean of the ceil(share * length) smallest values of each trajectory, [n] float64; 0 where it has none.

    x           [m] values of tokens
    trajectory  [m] int64, whose they are

    >>> mean_of_lowest(torch.tensor([-1.0, -3.0, -2.0, -0.5]), torch.tensor([0, 0, 0, 1]), 2, share=0.5).tolist()
    [-2.5, -0.5]
    """
    if share < 1:
        order = torch.argsort(x, stable=True)
        order = order[torch.argsort(trajectory[order], stable=True)]
        x, trajectory = x[order], trajectory[order]
        begins = begins_of(trajectory, n)
        place = torch.arange(trajectory.numel()) - begins[trajectory]
        quota = (share * begins.diff().to(torch.float64) - 1e-9).ceil()
        kept = place < quota[trajectory]
        x, trajectory = x[kept], trajectory[kept]
    total = torch.zeros(n, dtype=torch.float64).index_add_(0, trajectory, x.to(torch.float64))
    return total / torch.bincount(trajectory, minlength=n).clamp_min(1)
