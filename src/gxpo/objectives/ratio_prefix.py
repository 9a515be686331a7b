"""The token's ratio times what its prefix has become less or more likely by: a correction of states, not only of
actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gxpo.errors import one_of
from gxpo.objectives.prefix import before, minimum, places, recursion
from gxpo.objectives.ratio import Ratio

PREFIX = ("min", "mean", "sum")
_BOUND = 60.0  # nats: e^60 is beyond every clip, and finite in float32


@torch.no_grad()
def prefix_ratio(log_ratio: Tensor, trajectory: Tensor, prefix: str = "min") -> Tensor:
    """[n] float64, detached: log of what stands for the ratio of all earlier tokens of the trajectory; 0 for the first.

    log_ratio   [n] of the tokens, by trajectory, then time
    prefix      "min": the smallest of their ratios; "mean": their geometric mean; "sum": their product, which is the
                exact correction of the state's distribution and whose variance grows with the length. Held in +-60.

    >>> x = torch.tensor([0.1, -0.3, 0.2, 0.05], dtype=torch.float64)
    >>> prefix_ratio(x, torch.zeros(4).long()).exp().round(decimals=6).tolist()
    [1.0, 1.105171, 0.740818, 0.740818]
    """
    if prefix == "min":
        found = minimum(log_ratio, trajectory)
    else:
        found = recursion(log_ratio, 1.0, trajectory)
        found = found / (places(trajectory) + 1) if prefix == "mean" else found
    return before(found, trajectory).clamp(-_BOUND, _BOUND)


@dataclass(frozen=True)
class Prefix(Ratio):
    """log w_t = log rho_t + stop(`prefix_ratio`): each token carries its own gradient, times its prefix's factor.

    prefix  "min" | "mean" | "sum" over the earlier tokens of the trajectory, 0 (a factor of 1) for the first

    On policy it is the token's ratio. A "min" above 1 is possible while all earlier tokens have become likelier.

    Source: MinPRO, arXiv 2601.22718 ("min").
    """

    prefix: Literal["min", "mean", "sum"] = "min"

    couples = "trajectory"

    def __post_init__(self) -> None:
        one_of("objective.prefix", self.prefix, PREFIX)

    def level(self, log_ratio: Tensor, trajectory: Tensor, turn: Tensor) -> Tensor:
        return log_ratio + prefix_ratio(log_ratio.detach(), trajectory, self.prefix).to(log_ratio)
