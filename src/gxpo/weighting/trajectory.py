"""What weights of whole trajectories are made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import MissingSignal

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


def trajectory_mean(forest: Forest, signals: Signals, name: str) -> Tensor:
    """[R] float64: mean of a signal [P] over each trajectory's trainable tokens, 0 where it has none.

    Raises MissingSignal where the signal is nan at such a token.
    """
    entries = forest.path_trainable.nonzero().squeeze(1)
    x, owner, n = signals[name][entries].to(torch.float64), forest.path_trajectory[entries], forest.n_trajectories
    if missing := int(x.isnan().sum()):
        raise MissingSignal(f"{name} is nan for {missing} of {entries.numel()} trainable tokens")
    return torch.zeros(n, dtype=torch.float64).index_add_(0, owner, x) / torch.bincount(owner, minlength=n).clamp_min(1)


def counting(forest: Forest) -> Tensor:
    """[R] bool: compared, with trainable tokens."""
    return forest.compared & (forest.lengths() > 0)
