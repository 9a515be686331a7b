"""Entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from gxpo.algorithms.objectives.penalty import Penalty
from gxpo.base.errors import MissingSignal
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens


@part("entropy", stage="term")
@dataclass(frozen=True)
class Entropy(Penalty):
    """Entropy bonus: -coef * mean entropy (nats) of the policy at the trainable tokens.

    The aggregation does not follow the policy term's: by default it is the plain mean over tokens, so that the bonus is
    coef times the mean entropy that is logged, under every objective. Reads `policy.entropy`; raises MissingSignal
    where that is absent.
    """

    slot = "objective.entropy"
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"

    name = "entropy"
    sign = -1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "outputs", ("logprob", "entropy") if self.ever else ("logprob",))

    def quantity(self, forest: Forest, policy: PolicyTokens, entries: Tensor) -> Tensor:
        if policy.entropy is None:
            raise MissingSignal("objective.entropy needs the policy's entropy: give it, or set its coef to 0")
        return policy.entropy[entries].to(policy.logprob.dtype)
