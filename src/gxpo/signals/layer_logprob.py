"""Log-probs of the actions by the head on an inner layer (logit lens)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.protocols import Output
from gxpo.registry import part
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@part("layer_logprob", stage="signal")
@dataclass(frozen=True)
class LayerLogprob(SignalPart):
    """Signal "logprob@LAYER" [P]: log-probs by softmax(head(norm(h))), h the hidden state after that layer
    ("unnormed_logprob@LAYER": softmax(head(h))), with the policy as it is at the start of the step; nan in every step
    after the first `steps`, which costs nothing.

    layer  from 1, or a share of the depth above 0, up to 1.0 (0.15 of 36 layers is layer 5; of 3, layer 1)
    steps  of the trainer, from the first; None: all
    normed whether the head reads the state after the final norm

    Costs a forward pass of the step while it lasts.
    """

    layer: Annotated[int, Ge(1)] | Annotated[float, Interval(gt=0, le=1)] = 0.15
    steps: Annotated[int, Ge(0)] | None = None
    normed: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "provides", (Output("logprob", self.layer, normed=self.normed),))

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        name = self.provides[0]
        if self.steps is not None and tools.step > self.steps:
            return {name: torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)}
        return {name: tools.learner.outputs(forest, (name,))[name]}
