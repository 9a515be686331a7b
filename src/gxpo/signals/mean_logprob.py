"""Mean log-prob over the vocabulary at each token, by the policy at the start of the step (ROVER)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from gxpo.registry import part
from gxpo.signals.base import SignalPart, SignalTools

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@part("mean_logprob", stage="signal")
@dataclass(frozen=True)
class MeanLogprob(SignalPart):
    """The signal "start_mean_logprob" [P], nats: mean over the vocabulary of the log-probs at each action token.

    It is -log V less KL(uniform || policy), so at most -log V. Costs a forward pass of the step.

    Source: ROVER, arXiv 2509.24981, where changes of it are the value of acting uniformly.
    """

    provides = ("start_mean_logprob",)

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        return {"start_mean_logprob": tools.learner.outputs(forest, ("mean_logprob",))["mean_logprob"]}
