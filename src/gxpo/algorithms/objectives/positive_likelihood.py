"""Negative log-likelihood of tokens with positive advantage: imitation of the policy's own good rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, TermPart
from gxpo.algorithms.objectives.surrogate import Width
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


@part("positive_likelihood", stage="term")
@dataclass(frozen=True)
class PositiveLikelihood(TermPart):
    """Positive-sample likelihood: coef * mean of -log policy over the trainable tokens of advantage above `threshold`.

    The mean counts every such token of the step once, whatever its advantage; no ratio, no clip. Weight parts do not
    touch it, `forest.weight` does. Figure: positive_nll, the mean before `coef` (nats).

    Source: THOR, arXiv 2509.13761, and its code (0.01, threshold 1e-7).
    """

    slot = "objective.add.NAME"

    coef: Width = 0.01
    threshold: float = 1e-7

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        # tokens of trajectories of weight 0 stay in the denominator: a weight changes none
        is_counted_P = forest.path_trainable & (credit > self.threshold)
        scale_P = self.coef / max(1, int(is_counted_P.sum())) * forest.to_path(forest.weight, "R")
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        nll = -policy.logprob[entries]
        figures = {"positive_nll": float(nll.detach().mean())} if entries.numel() else {}
        return (scale_P[entries].to(nll) * nll).sum(), figures

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of advantage above the threshold, in trajectories of non-zero `forest.weight`."""
        if self.coef == 0:
            return torch.zeros_like(forest.path_trainable)
        return forest.path_trainable & (credit > self.threshold) & (forest.to_path(forest.weight, "R") != 0)
