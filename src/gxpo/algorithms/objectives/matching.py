"""Losses on the matching errors of re-noised samples (AWM, DGPO, DiffusionNFT): no density of a denoising path.

d is the squared error of the network's prediction on a sample that was noised again, the mean over its dimensions; the
learner gives -d as the token's log-prob. First the losses as pure functions, then the terms that apply them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, TermPart, coefficients
from gxpo.algorithms.objectives.surrogate import (
    Entries,
    Positive,
    Share,
    Width,
    beyond,
    clip_loss,
    denominator,
    ratio_of,
)
from gxpo.base.errors import GxpoError, MissingSignal
from gxpo.forest import grouped
from gxpo.parts.protocols import Output
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals

Curve = Literal["uniform", "t", "t2", "huber", "ghuber"]
TINY = 1e-10


# ---------------------------------------------------------------- losses
def likelihood(error: Tensor, time: Tensor, curve: Curve = "ghuber", power: float = 0.25) -> Tensor:
    """Stand-in for the log-prob of a re-noised sample (AWM), [n]: minus a curve of the error d at time t.

    uniform -d    t -d t    t2 -d t^2    huber -(sqrt(d + e) - 1e-5) t    ghuber -((d + e)^p - e^p) t / p,   e 1e-10

    >>> d, t = torch.tensor([0.25], dtype=torch.float64), torch.tensor([0.6])
    >>> [round(likelihood(d, t, c).item(), 6) for c in ("uniform", "t", "ghuber")]
    [-0.25, -0.15, -1.689467]
    """
    error = error.clamp_min(0)
    if curve == "huber":
        return -((error + TINY).sqrt() - 1e-5) * time
    if curve == "ghuber":
        return -((error + TINY).pow(power) - TINY**power) * time / power
    return -error * {"uniform": 1.0, "t": time, "t2": time.square()}[curve]


def group_preference(
    error: Tensor, reference: Tensor, credit: Tensor, peers: Tensor, beta: float = 100.0
) -> tuple[Tensor, Tensor]:
    """Group preference loss (DGPO): stop(S(z)) A d of each entry, [n], and its weight S(z), S the logistic function.

    z = beta mean_peers A (d - d_reference) is how wrongly the policy, against the reference, ranks its group.

    error, reference  [n] d of the policy and of the reference;   peers [n] int64 ids of (group, draw)

    The gradient is that of -log S(-z), divided by beta / G. The unknown normalisers cancel because the advantages of a
    group add up to 0.
    """
    z = beta * grouped.mean(credit * (error.detach() - reference), peers)
    weight = torch.sigmoid(z)
    return weight * credit * error, weight


def negative_aware(positive: Tensor, negative: Tensor, credit: Tensor, share: float, bound: float = 5.0) -> Tensor:
    """Negative-aware loss (DiffusionNFT), [n]: bound (r / b e_positive + (1 - r) / b e_negative).

    r = clip(1/2 + A / (2 bound), 0, 1) is how good a sample is, b = share

    positive, negative  [n] normalised errors of v_old + b (v - v_old) and of v_old - b (v - v_old)
    """
    good = (0.5 + credit / (2 * bound)).clamp(0, 1)
    return bound * (good * positive + (1 - good) * negative) / share


# ---------------------------------------------------------------- terms
class MatchingTerm(TermPart):
    """Base class of losses of re-noised samples: a loss per trained token, and their mean."""

    requires = ("renoised",)

    def tokens(self, forest: Forest, credit: Tensor, weight: Tensor) -> Tensor:
        """Tokens of non-zero advantage and weight, indices into P."""
        return self.active(forest, credit, weight).nonzero().squeeze(1)

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        has_gradient_P = forest.path_trainable & (credit != 0) & (weight != 0)
        return has_gradient_P if self.couples == "token" else forest.path_trainable & bool(has_gradient_P.any())

    def total(self, forest: Forest, entries: Tensor, loss: Tensor, weight: Tensor) -> Tensor:
        """Mean over all trained tokens of the weighted loss."""
        c = coefficients(forest.path_trajectory, forest.path_trainable, "token_mean")[entries]
        return (c * weight[entries] * loss).sum()


@part("advantage_matching", stage="term")
@dataclass(frozen=True)
class AdvantageMatching(MatchingTerm):
    """Advantage-weighted matching (AWM): PPO's clip on ratios of `likelihood`, rho = exp(l - l_old).

    curve, power  see `likelihood`
    clip          rho is held in [1 - clip, 1 + clip]; with 1 almost nothing is clipped
    scale         the advantage, bounded by 5 before, is multiplied by scale / 5

    On policy the gradient is -A grad l: with A = 1 and "uniform" that of flow matching. Source: AWM, arXiv 2509.25050.
    """

    curve: Curve = "ghuber"
    power: Share = 0.25
    clip: Width = 1.0
    scale: Positive = 1.0

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        entries = self.tokens(forest, credit, weight)
        if "time" not in forest.extras:
            raise GxpoError("objective advantage_matching reads the times of re-noised samples: set rollout=renoise")
        time, old = forest.extras["time"][forest.path_token][entries], denominator(policy, forest.path_trainable)
        new, below = (
            likelihood(-x[entries].to(torch.float64), time, self.curve, self.power) for x in (policy.logprob, old)
        )
        ratio = ratio_of(new - below.detach())
        x = Entries.of(ratio, credit[entries] * self.scale / 5)
        loss, is_clipped = clip_loss(x, 1 - self.clip, 1 + self.clip)
        value = self.total(forest, entries, loss, weight).to(policy.logprob.dtype)
        return value, {"matching_error": _mean(-policy.logprob[entries]), "clip_fraction": _mean(is_clipped)}


@part("group_preference", stage="term")
@dataclass(frozen=True)
class GroupPreference(MatchingTerm):
    """Direct group preference (DGPO): `group_preference` over the re-noised samples of one group that share a noise.

    beta  of the group's logit
    clip  where A > 0 and exp(d_old - d) > 1 + clip, or A <= 0 and it is < 1 - clip, d has no gradient

    Advantages of a group must add up to 0. Source: DGPO, arXiv 2510.08425, and its code.
    """

    beta: Positive = 100.0
    clip: Width = 0.05

    couples = "group"
    needs = ("reference_logprob",)

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        if policy.reference_logprob is None:
            raise MissingSignal("objective group_preference needs reference_logprob: give the reference policy's")
        entries = self.tokens(forest, credit, weight)
        a, error = credit[entries], -policy.logprob[entries].to(torch.float64)
        below = denominator(policy, forest.path_trainable)[entries]
        is_clipped = beyond((-error.detach() - below).exp(), a, 1 - self.clip, 1 + self.clip)
        peers = grouped.dense(forest.ids("segment", axis="P")[entries])
        reference = -policy.reference_logprob[entries].to(torch.float64)
        loss, share = group_preference(torch.where(is_clipped, error.detach(), error), reference, a, peers, self.beta)
        value = self.total(forest, entries, loss, weight).to(policy.logprob.dtype)
        figures = {"matching_error": _mean(error), "clip_fraction": _mean(is_clipped), "misranked": _mean(share)}
        return value, figures


@part("negative_aware", stage="term")
@dataclass(frozen=True)
class NegativeAware(MatchingTerm):
    """Negative-aware matching (DiffusionNFT): errors of policies mixed towards and away from an earlier one.

    share  b: v+ = v_old + b (v - v_old) is to match good samples, v- = v_old - b (v - v_old) bad ones
    bound  of the advantage, which maps it to r in [0, 1]

    An advantage of 0 pulls to the earlier policy. Reads `signal.anchor`, the earlier policy's predictions. Source:
    DiffusionNFT, arXiv 2509.16117, and its code.
    """

    share: Share = 1.0
    bound: Positive = 5.0

    constants = needs = ("anchor_prediction",)
    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        outputs = ("logprob", Output("mixed_error", self.share), Output("mixed_error", -self.share))
        object.__setattr__(self, "outputs", outputs)

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        return forest.path_trainable & (weight != 0)

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        entries = self.tokens(forest, credit, weight)
        positive, negative = (policy.outputs[name][entries] for name in self.outputs[1:])
        loss = negative_aware(positive, negative, credit[entries], self.share, self.bound)
        value = self.total(forest, entries, loss, weight).to(policy.logprob.dtype)
        return value, {"matching_error": _mean(-policy.logprob[entries])}


@part("prediction_gap", stage="term")
@dataclass(frozen=True)
class PredictionGap(MatchingTerm):
    """Penalty on the mean squared difference of the network's prediction from the anchor's, on re-noised samples.

    coef  1 of AWM's penalty to the moving average; 1e-4 to 0.02 to the reference. Reads `signal.anchor`.
    """

    slot = "objective.add.NAME"
    coef: Width = 1.0

    outputs = ("gap",)
    constants = needs = ("anchor_prediction",)
    reads_credit = False
    learns_from_equal_groups = True

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        return forest.path_trainable

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        entries = forest.path_trainable.nonzero().squeeze(1)
        gap = policy.outputs["gap"][entries]
        value = self.total(forest, entries, self.coef * gap, torch.ones_like(weight))
        return value.to(policy.logprob.dtype), {"prediction_gap": _mean(gap)}


@torch.no_grad()
def _mean(x: Tensor) -> float:
    return float(x.to(torch.float64).mean()) if x.numel() else 0.0
