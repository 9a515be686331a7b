"""L1 norm of the last hidden state before each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ModelError
from gxpo.registry import part
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def state_norm(hidden: Tensor, before: Tensor) -> Tensor:
    """L1 norm of the row of `hidden` [T, H] before each token, [n] float64; 0 where there is none.

    before  [n] int64 row of the token before, -1 = none
    """
    norm = torch.linalg.vector_norm(hidden, ord=1, dim=1).to(torch.float64)
    return torch.where(before >= 0, norm[before.clamp_min(0)], 0.0)


@part("state_norm", stage="signal")
@dataclass(frozen=True)
class StateNorm(SignalPart):
    """The signal "state_norm" [P]: |h|_1 of the policy's last hidden state, as the head reads it, at the token before.

    Of the policy at the start of the step; costs one forward pass.
    """

    provides = ("state_norm",)

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        before = forest.pack().predecessor[forest.path_token]
        if bool(((before < 0) & forest.path_trainable).any()):
            raise ModelError("an answer begins with its first token, which nothing predicts: give it a prompt")
        return {"state_norm": state_norm(tools.learner.hidden(forest), before)}
