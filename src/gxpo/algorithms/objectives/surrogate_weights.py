"""Detached weights on the log-likelihood: CISPO's truncation, REINFORCE, TOPR, VESPO, masks of DPPO and REC."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gxpo.algorithms.objectives.surrogate import Entries, Positive, Width, weighted_loss
from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part


@part("tapered", stage="surrogate")
def tapered(x: Entries, *, ratio_max: Positive = 1.0) -> tuple[Tensor, Tensor]:
    """Tapered off-policy REINFORCE (TOPR): -A logprob for A > 0; -stop(min(rho, ratio_max)) A logprob for A < 0.

    ratio_max  absolute, 1.0: what is punished never counts more than when it was sampled, and less and less as it
               becomes unlikely

    Source: TOPR, arXiv 2503.14286, with the ratio of the whole trajectory (`sequence_sum`); ports take each token's.
    """
    return weighted_loss(x, torch.where(x.credit > 0, torch.ones_like(x.ratio), x.ratio.clamp_max(ratio_max)))


def gamma_kernel(ratio: Tensor, power: Tensor, decay: Tensor) -> Tensor:
    """Gamma kernel (VESPO), [n]: rho^power e^(decay (1 - rho)), 1 at rho = 1, greatest at rho = power / decay.

    >>> x = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    >>> gamma_kernel(x, torch.full_like(x, 2.0), torch.full_like(x, 3.0)).round(decimals=6).tolist()
    [1.120422, 1.0, 0.199148]
    """
    # 0 has no logarithm and infinity times 0 is nan; beyond 1e30 the kernel is 0 in any case
    finite_ratio = ratio.clamp(torch.finfo(ratio.dtype).tiny, 1e30)
    return (power * finite_ratio.log() + decay * (1 - finite_ratio)).exp()


@part("gamma", stage="surrogate")
def gamma(
    x: Entries,
    *,
    power_positive: Positive = 2.0,
    decay_positive: Positive = 3.0,
    power_negative: Positive = 3.0,
    decay_negative: Positive = 2.0,
) -> tuple[Tensor, Tensor]:
    """Gamma-shaped importance weight (VESPO): -stop(phi(rho)) A logprob, phi(rho) = rho^k e^(lambda (1 - rho)).

    power_positive, decay_positive  k and lambda for A > 0
    power_negative, decay_negative  and for A < 0

    phi is bounded by its value at k / lambda: 1.21 and 1.24 with the defaults.

    Source: VESPO, arXiv 2602.10693, with the ratio of the whole trajectory (`sequence_sum`); constants as in TRL.
    """
    power, decay = x.by_sign(power_positive, power_negative), x.by_sign(decay_positive, decay_negative)
    return weighted_loss(x, gamma_kernel(x.ratio, power, decay))


@torch.no_grad()
def binary_kl(below: Tensor, logprob: Tensor, eps: float = 1e-8) -> Tensor:
    """Binary KL of "this token or another", [n] in nats: KL(q || p), q = e^below, p = e^logprob.

    eps  added to 1 - q and 1 - p: a p that was rounded to 1 is near a q that was not, not infinitely far from it

    >>> x = torch.tensor([0.5, 0.5, 1.0, 1.0], dtype=torch.float64).log()
    >>> binary_kl(x, torch.tensor([0.5, 1.0, 1.0, 0.25], dtype=torch.float64).log()).round(decimals=6).tolist()
    [0.0, 8.517193, 0.0, 1.386294]
    """
    other_prob_q, other_prob_p = -below.expm1(), -logprob.expm1()
    return below.exp() * (below - logprob) + other_prob_q * ((other_prob_q + eps).log() - (other_prob_p + eps).log())


@part("divergence_mask", stage="surrogate")
def divergence_mask(
    x: Entries,
    *,
    divergence: Literal["tv", "kl"] = "tv",
    divergence_low: Width = 0.2,
    divergence_high: Width = 0.2,
    ratio_max: Positive = 20.0,
) -> tuple[Tensor, Tensor]:
    """Mask by divergence (DPPO): -stop(min(rho, ratio_max)) A logprob, 0 for tokens that moved by more than the bound.

    divergence  "tv": moved by p - q, "kl": by `binary_kl` of q and p; p and q are the token's probability under the
                policy and under what its ratio divides by
    divergence_low, divergence_high  bounds for A < 0, where p < q, and for A > 0, where p > q
    ratio_max   absolute, for what is left

    Unlikely tokens go on being trained at ratios that a clip would cut; likely ones are stopped before. Source: DPPO,
    arXiv 2602.04879 (binary forms), and its code.
    """
    # measured on probabilities: an unlikely token may change its ratio a lot and the policy hardly
    change = (x.logprob.exp() - x.below.exp()).detach()
    distance = change.abs() if divergence == "tv" else binary_kl(x.below, x.logprob)
    up, down = (change > 0) & (distance > divergence_high), (change < 0) & (distance > divergence_low)
    # only a move in the direction of the advantage is stopped; the way back stays open
    is_masked = torch.where(x.credit > 0, up, down)
    return weighted_loss(x, torch.where(is_masked, torch.zeros_like(x.ratio), x.ratio.clamp_max(ratio_max)))


def _rings(clip_low: float, clip_high: float, ring_low: float, ring_high: float, **_: object) -> str | None:
    if clip_low <= ring_low and clip_high <= ring_high:
        return None
    return (
        f"clip_low ({clip_low}) is at most ring_low ({ring_low}), and clip_high ({clip_high}) at most ring_high "
        f"({ring_high})"
    )


@part("ratio_mask", stage="surrogate")
@checked_by(_rings)
def ratio_mask(
    x: Entries,
    *,
    side: Literal["one", "two", "ring"] = "one",
    importance: Literal["none", "ratio"] = "none",
    clip_low: Width = 0.2,
    clip_high: Width = 0.2,
    ring_low: Width = 0.6,
    ring_high: Width = 2.0,
    ratio_max: Positive = math.inf,
) -> tuple[Tensor, Tensor]:
    """Mask by ratio (REC): -stop(w) A logprob for tokens that pass, 0 for the others.

    side        "one"   rho <= 1 + clip_high for A > 0, rho >= 1 - clip_low for A < 0: what PPO's clip leaves
                "two"   1 - clip_low <= rho <= 1 + clip_high, whatever the advantage
                "ring"  "two", and what is far off on the side that the advantage moves it from: rho <= 1 - ring_low for
                        A > 0, rho >= 1 + ring_high for A < 0
    importance  "none": w = 1; "ratio": w = min(rho, ratio_max)
    clip_low, clip_high, ring_low, ring_high  relative to 1;   ratio_max  absolute

    With "one", "ratio" and no ratio_max the gradient is that of the clip. Source: REC, arXiv 2509.24203, and its code.
    """
    # bounds included: on policy (rho = 1) every token passes, whatever the widths
    up, high, low = x.credit > 0, x.ratio <= 1 + clip_high, x.ratio >= 1 - clip_low
    passes = torch.where(up, high, low) if side == "one" else high & low
    if side == "ring":
        # a token far off on the wrong side of the advantage is pulled back, which no mask need prevent
        passes = passes | torch.where(up, x.ratio <= 1 - ring_low, x.ratio >= 1 + ring_high)
    weight = x.ratio.clamp_max(ratio_max) if importance == "ratio" else torch.ones_like(x.ratio)
    return weighted_loss(x, torch.where(passes, weight, torch.zeros_like(weight)))
