"""Score centring: subtract the sampler's expectation of the score from each token's policy gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, PolicyGradient, TermPart, coefficients
from gxpo.algorithms.objectives.control import Width
from gxpo.algorithms.objectives.surrogate import Positive
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.parts.definition import show
from gxpo.parts.protocols import LIKELIEST, Output
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


@part("score_centring", stage="term")
@dataclass(frozen=True)
class ScoreCentring(TermPart):
    r"""Score centring: coef * aggregate of A_t C_t, added to a policy gradient whose loss is -A_t w_t log p(y_t).

    C_t = sum_v stop(q_v w_v) log p_v over the vocabulary, q the sampler's and p the learner's distribution at the token
    w_v = 1, or min(p_v / q_v, cap) beside the weight `truncated`

    Its gradient is the sampler's expectation of the weighted score w grad log p, so that the sum of both terms moves
    p by the covariance of advantage and score under q, and a constant advantage moves nothing. Where p = q it has no
    gradient. q is known at the recorded ids; outside of them it counts as proportional to p.

    coef       1: centred; 0: off
    aggregate  and `horizon`: None: as the policy term's, whose sum it corrects
    cap        None: that of the weight `truncated`, if the method has it

    A is the advantage times all weights but `truncated`. Exact for a surrogate of slope A at ratio 1 (PPO's and its
    relatives) on the first optimiser step after sampling; on later ones p is the current policy and clips are not
    looked at, as in NeMo RL. Tokens without a recorded distribution are left out.

    Source: arXiv 2609.20807, eqs. 3, 9, 12 and 14, from ports that cite them.
    """

    slot = "objective.add.NAME"
    coef: Width = 1.0
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum"] | None = None
    horizon: float | None = None
    cap: Positive | None = None

    needs = LIKELIEST
    constants = LIKELIEST

    @property
    def output(self) -> Output:
        """Name of the policy output that the term reads."""
        return Output("expected_score", "none" if self.cap is None else float(self.cap))

    @property
    def outputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Log-probs, and C of the current cap."""
        return ("logprob", self.output)

    def adapt_to(self, policy: Any, weights: Mapping[str, Any]) -> ScoreCentring:
        """The term with the policy term's aggregation and the cap of the weight `truncated`; ConfigError for an
        objective that is no policy gradient, or weights whose expectation under the sampler is not known."""
        if not isinstance(policy, PolicyGradient):
            raise ConfigError(
                f"objective.add: score_centring corrects a policy gradient, and objective is {show(policy)}"
            )
        if policy.ratio_over == "behaviour":
            raise ConfigError(
                "objective.add: score_centring is for a ratio over the proximal policy: set "
                "objective.ratio_over=proximal, and weight.mismatch=truncated for a correction of the mismatch"
            )
        cap = self.cap
        for name, weight in weights.items():
            if not getattr(weight, "reads_mismatch", False):
                continue
            if (weight_cap := getattr(weight, "cap", None)) is None:
                raise ConfigError(
                    f"weight.{name}: score_centring knows the expectation of weight truncated alone: leave one of the "
                    "two out, or set weight.mismatch=truncated"
                )
            if cap not in (None, weight_cap):
                raise ConfigError(f"score_centring has cap {cap:g} and weight.{name} {weight_cap:g}: leave its own out")
            cap = weight_cap
        return replace(
            self,
            aggregate=self.aggregate or policy.aggregate,
            horizon=policy.horizon if self.horizon is None else self.horizon,
            cap=cap,
        )

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        """Figures: centring_mass, mean mass of the sampler on the recorded ids; centring_share, share of the trainable
        tokens that have a record."""
        if self.output not in policy.outputs:
            raise MissingSignal(f"score_centring needs output {self.output!r} of the policy: give it in `outputs`")
        trainable_P = forest.path_trainable
        entries = self.active(forest, credit, weight, signals).nonzero().squeeze(1)
        expectation = policy.outputs[self.output][entries].to(policy.logprob)
        scale_P = coefficients(forest.path_trajectory, trainable_P, self.aggregate or "sequence_mean", self.horizon)
        factor = credit[entries] * self._other_weights(forest, weight, signals)[entries]
        value = (self.coef * scale_P[entries] * factor).to(expectation) * expectation
        sampler_logprob = signals["sampler_logprob"][trainable_P & self._is_recorded(signals)]
        figures = {"centring_share": len(sampler_logprob) / max(1, int(trainable_P.sum()))}
        if len(sampler_logprob):
            figures["centring_mass"] = float(sampler_logprob[:, :-1].exp().sum(1).mean())
        return value.sum(), figures

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of non-zero advantage and weight; with the signals, those with a recorded distribution."""
        if self.coef == 0:
            return torch.zeros_like(forest.path_trainable)
        has_gradient_P = forest.path_trainable & (credit != 0) & (weight != 0)
        return has_gradient_P if signals is None else has_gradient_P & self._is_recorded(signals)

    def _is_recorded(self, signals: Signals) -> Tensor:
        return (signals["sampler_logprob"] > -torch.inf).any(1)

    def _other_weights(self, forest: Forest, weight: Tensor, signals: Signals) -> Tensor:
        """[P] weights without the mismatch weight of the token that was sampled, whose expectation C has instead."""
        if self.cap is None:
            return weight
        log_weight = signals["proximal_logprob"].to(torch.float64) - signals["behaviour_logprob"].to(torch.float64)
        mismatch = log_weight.nan_to_num(nan=0.0).exp().clamp_max(self.cap)
        return torch.where(mismatch > 0, weight / mismatch, weight)
