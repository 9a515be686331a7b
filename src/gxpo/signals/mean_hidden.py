"""Embedding of each trajectory: the mean hidden state over its action tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.registry import part
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

CHUNK = 1 << 16  # entries whose states are taken out at a time


@torch.no_grad()
def mean_hidden(forest: Forest, hidden: Tensor) -> Tensor:
    """Mean of `hidden` [T, H] over each trajectory's action tokens, [R, H] float64; 0 where it has none."""
    total = torch.zeros(forest.n_trajectories, hidden.shape[1], dtype=torch.float64)
    for entries in torch.arange(forest.n_entries).split(CHUNK):
        total.index_add_(0, forest.path_trajectory[entries], hidden[forest.path_token[entries]].to(torch.float64))
    length = torch.bincount(forest.path_trajectory, minlength=forest.n_trajectories)
    return total / length.clamp_min(1)[:, None]


@part("mean_hidden", stage="signal")
@dataclass(frozen=True)
class MeanHidden(SignalPart):
    """The signal "embedding" [R, H]: `mean_hidden` of the policy's states at the start of the step.

    layer  which hidden states; -1 the last

    It needs no second model, and is coarser than a sentence encoder: mean states of a language model all point much the
    same way, so their cosines are near 1. An encoder of one's own is a signal part that provides "embedding".
    """

    layer: int = -1

    provides = ("embedding",)
    axes = {"embedding": "R"}  # noqa: RUF012  never changed

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        return {"embedding": mean_hidden(forest, tools.learner.hidden(forest, layer=self.layer))}
