"""The entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.errors import MissingSignal
from gxpo.objectives.aggregate import AGGREGATES, coefficients
from gxpo.objectives.base import TermPart, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals


@dataclass(frozen=True)
class Entropy(TermPart):
    """-coef * mean entropy (nats) of the policy at the trainable entries.

    The aggregation is its own and does not follow the policy term's: by default the plain mean over tokens, so that
    the bonus is coef times the mean entropy that is logged, under every objective. `forest.weight` multiplies it,
    weight parts do not. Reads `policy.entropy`; raises MissingSignal where that is absent. At coef 0 it reads nothing.
    """

    coef: float = 0.0
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    horizon: float | None = None

    outputs = ("logprob", "entropy")

    def __post_init__(self) -> None:
        one_of("objective.entropy.aggregate", self.aggregate, AGGREGATES)
        object.__setattr__(self, "outputs", ("logprob", "entropy") if self.coef != 0 else ("logprob",))

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Tensor:
        scale = coefficients(forest.path_trajectory, forest.path_trainable, self.aggregate, self.horizon)
        scale = self.coef * scale * forest.to_path(forest.weight, "R")
        entries, entropy = self._entropy(forest, policy, credit, weight)
        return -(scale[entries].to(entropy) * entropy).sum()

    def active(self, forest: Forest, credit: Tensor, weight: Tensor) -> Tensor:
        """Trainable entries of trajectories of non-zero `forest.weight`."""
        if self.coef == 0:
            return torch.zeros_like(forest.path_trainable)
        return forest.path_trainable & (forest.to_path(forest.weight, "R") != 0)

    def _entropy(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        if not entries.numel():
            return entries, policy.logprob[entries]
        if policy.entropy is None:
            raise MissingSignal("objective.entropy needs the policy's entropy: give it, or set its coef to 0")
        return entries, policy.entropy[entries].to(policy.logprob.dtype)

    @torch.no_grad()
    def metrics(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> dict[str, float]:
        """entropy: mean over the active tokens, in nats."""
        _, entropy = self._entropy(forest, policy, credit, weight)
        return {"entropy": float(entropy.mean())} if entropy.numel() else {}
