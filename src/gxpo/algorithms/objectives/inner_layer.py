"""Policy gradient of an inner layer's policy: the head applied to an earlier layer, in the first steps of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, PolicyGradient
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.parts.protocols import Output
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


@part("inner_layer", stage="term")
@dataclass(frozen=True)
class InnerLayer(PolicyGradient):
    """`PolicyGradient` with both log-probs of its ratio from an inner layer while signal "logprob@LAYER" is known; the
    usual ones where it is nan throughout.

    layer  from 1, or a share of the depth above 0, up to 1.0; of the signal too (`layer_logprob`, whose `steps` say for
           how long the inner policy is trained)

    final_norm  True: the head reads the state after the final norm, as at the end; False: as it is. Of the signal too

    Nothing else differs: with a given pair of log-probs the loss is the policy gradient's of that pair. The rollouts
    are the whole model's, so the inner ratio corrects for no sampling; it says how far the inner policy has moved
    since the step began, and is 1 before the first optimiser step. Only the layers up to this one, the final norm and
    the head get a gradient then.

    Source: BuPO, arXiv 2512.19673.
    """

    layer: int | float = 0.15
    final_norm: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ratio_over != "proximal":
            raise ConfigError(
                "an inner layer's ratio is over the same layer at the start of the step, and nobody sampled from it: "
                "set objective.ratio_over=proximal"
            )
        object.__setattr__(self, "outputs", (*self.outputs, self.name))
        object.__setattr__(self, "needs", (self.name,))

    @property
    def name(self) -> Output:
        """Name of the policy output, and of its signal."""
        return Output("logprob", self.layer, normed=self.final_norm)

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        """Figures: those of the policy gradient, of the ratio that was trained; inner_layer, 1 where it is the inner
        layer's."""
        inner_policy = self._inner_policy(forest, policy, signals)
        value, figures = super().__call__(forest, inner_policy, credit, weight, signals, step)
        return value, {**figures, "inner_layer": float(inner_policy is not policy)}

    def _inner_policy(self, forest: Forest, policy: PolicyTokens, signals: Signals) -> PolicyTokens:
        """Policy log-probs of the inner layer, old and current, while its signal is known; else the policy as it is."""
        # nan throughout: the first steps, in which the inner policy is trained, are over
        below = signals[self.name].detach()
        is_unknown_P = below.isnan() & forest.path_trainable
        if bool(is_unknown_P[forest.path_trainable].all()):
            return policy
        if missing := int(is_unknown_P.sum()):
            raise MissingSignal(
                f"{self.name} is nan for {missing} of {int(forest.path_trainable.sum())} trained tokens"
            )
        if self.name not in policy.outputs:
            raise MissingSignal(f"this objective needs output {self.name!r} of the policy: give it in `outputs`")
        inner_logprob = policy.outputs[self.name].to(policy.logprob)
        return replace(policy, logprob=inner_logprob, proximal_logprob=below.to(inner_logprob))
