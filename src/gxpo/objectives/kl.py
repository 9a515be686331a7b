"""KL divergence to the reference policy: estimators, as a term of the loss and as a penalty on the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.errors import MissingSignal, one_of
from gxpo.objectives.penalty import Penalty

if TYPE_CHECKING:
    from gxpo.protocols import PolicyTokens

ESTIMATORS = ("k1", "k2", "k3")


def kl_estimate(logprob: Tensor, reference: Tensor, estimator: str = "k3") -> Tensor:
    """Estimate of KL(policy || reference) from each sampled token, with d = reference - logprob.

    k1  -d              unbiased value
    k2  d^2 / 2         biased value (small where the policies are close)
    k3  e^d - 1 - d     unbiased value, never negative

    What the choice does, for tokens sampled from the policy itself (exact over the vocabulary):
      differentiated as a loss   k1: expected gradient 0, it does nothing; k2: exactly grad KL(policy || reference);
                                 k3: the gradient of KL(reference || policy), close to but not the other one; k3
                                 times the ratio, both differentiated: exact
      detached, in the reward    k1: exact; k2, k3: not
    No clamps: some trainers clamp d to +-20 and k3 to +-10, and have no gradient beyond.

    Source: Schulman, "Approximating KL divergence", 2020; GRPO (arXiv 2402.03300, eq. 4) uses k3 as a loss.
    """
    one_of("objective.kl.estimator", estimator, ESTIMATORS)
    d = reference.detach() - logprob
    if estimator == "k1":
        return -d
    return d.square() / 2 if estimator == "k2" else d.expm1() - d


@torch.no_grad()
def penalised_outcome(
    outcome: Tensor, kl: Tensor, trajectory: Tensor, coef: float, where: Tensor | None = None
) -> Tensor:
    """outcome - coef * (sum of the trajectory's per-token estimates), for KL in the reward.

    outcome     [R]; nan (unscored) stays nan
    kl          [P] `kl_estimate` of the policy at the start of the step; k1 gives the exact KL gradient
    trajectory  [P] index into R
    where       [P] bool, entries that count: the trainable ones (default: all)

    Apply it before any group statistic: the KL then enters the group's mean and std. Returns [R] float64.
    """
    counted = kl.to(torch.float64)
    if where is not None:
        counted = torch.where(where, counted, torch.zeros_like(counted))
    total = torch.zeros(outcome.shape, dtype=torch.float64).index_add_(0, trajectory, counted)
    return outcome.to(torch.float64) - coef * total


@dataclass(frozen=True)
class KL(Penalty):
    """coef * aggregate of `kl_estimate` over the trainable entries.

    Reads `policy.reference_logprob`; raises MissingSignal where that is absent. DeepSeekMath has k3 with coef 0.04.
    """

    estimator: Literal["k1", "k2", "k3"] = "k3"

    name = "kl"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("objective.kl.estimator", self.estimator, ESTIMATORS)
        object.__setattr__(self, "needs", ("reference_logprob",) if self.ever else ())

    def quantity(self, policy: PolicyTokens, entries: Tensor) -> Tensor:
        if policy.reference_logprob is None:
            raise MissingSignal("objective.kl needs reference_logprob: give a reference, or set objective.kl.coef to 0")
        logprob = policy.logprob[entries]
        reference = policy.reference_logprob[entries].to(logprob)
        if missing := int(reference.isnan().sum()):
            raise MissingSignal(f"objective.kl: reference_logprob is nan for {missing} of {entries.numel()} tokens")
        return kl_estimate(logprob, reference, self.estimator)
