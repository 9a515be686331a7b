"""KL between the policy with the full observation and with a masked one (PAPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, TermPart, coefficients
from gxpo.algorithms.objectives.penalty import Estimator, kl_estimate
from gxpo.algorithms.objectives.surrogate import Positive, Width
from gxpo.base.errors import MissingSignal
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


def masked_kl(
    logprob: Tensor,
    masked: Tensor,
    coef: float = 0.01,
    entropy_coef: float = 0.03,
    kl_max: float | None = None,
    estimator: Estimator = "k3",
) -> Tensor:
    """Masked-observation loss of each token, [n]: -coef kl + entropy_coef (-logprob), kl the `kl_estimate` of
    KL(policy || masked): of k3, e^d - d - 1 with d = masked - logprob.

    logprob       [n] of the policy, which sees everything; carries the gradient
    masked        [n] of the policy with part of the observation hidden; detached
    kl_max        a token's estimate is worth no more than this, and has no gradient beyond (None: no bound)

    With k3, d/dlogprob = -coef (1 - e^d) - entropy_coef: a token that the observation made likelier (d < 0) is made
    likelier still. In expectation over tokens of the policy itself the first summand then raises KL(masked || policy),
    while k2 and k3+, whose derivative is coef d, raise KL(policy || masked). The second has no gradient in expectation:
    it acts on the sample, and once the policy has moved from the sampler's. No estimate has an upper bound, and raising
    it without end is a way to cheat: the second summand is the paper's brake, `kl_max` another.

    Source: PAPO, arXiv 2507.06448. Its second entropy term, of the masked policy, is left out: with masked log-probs
    that carry no gradient, as in its code, it is a constant.
    """
    # a capped token's estimate is taken at a distance of 0: 0 times a derivative that has overflowed would be nan
    kl = kl_estimate(logprob, masked, estimator)
    if kl_max is not None:
        is_capped = kl.detach() > kl_max
        logprob_or_masked = torch.where(
            is_capped, masked, logprob
        )  # 0 times a derivative that has overflowed would be nan
        kl = torch.where(is_capped, kl_max, kl_estimate(logprob_or_masked, masked, estimator))
    return -coef * kl - entropy_coef * logprob


@part("masked_kl", stage="term")
@dataclass(frozen=True)
class MaskedKl(TermPart):
    """PAPO's auxiliary loss: aggregate of `masked_kl` over the trainable tokens, whatever their rewards.

    coef, entropy_coef, kl_max, estimator   see `masked_kl`
    aggregate    its own, not the policy term's; `horizon` for "sequence_sum"

    Reads signal `masked_logprob`: the policy at the start of the step, once. Not importance weighted: weight parts do
    not touch it, `forest.weight` does. Groups of equal rewards are trained by it as all others.
    """

    slot = "objective.add.NAME"
    coef: Width = 0.01
    entropy_coef: Width = 0.03
    kl_max: Positive | None = None
    estimator: Literal["k2", "k3", "k3+"] = "k3"
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    horizon: float | None = None

    needs = ("masked_logprob",)
    learns_from_equal_groups = True

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        scale_P = coefficients(forest.path_trajectory, forest.path_trainable, self.aggregate, self.horizon)
        scale_P = scale_P * forest.to_path(forest.weight, "R")
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        logprob = policy.logprob[entries]
        masked_logprob = signals["masked_logprob"][entries].to(logprob)
        if missing := int(masked_logprob.isnan().sum()):
            raise MissingSignal(f"masked_logprob is nan for {missing} of {entries.numel()} trained tokens")
        token_loss = masked_kl(logprob, masked_logprob, self.coef, self.entropy_coef, self.kl_max, self.estimator)
        return (scale_P[entries].to(logprob) * token_loss).sum(), {}

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of trajectories of non-zero `forest.weight`."""
        if self.coef == 0 and self.entropy_coef == 0:
            return torch.zeros_like(forest.path_trainable)
        return forest.path_trainable & (forest.to_path(forest.weight, "R") != 0)
