"""Token mask by second-order effect: drop tokens whose update lowers the objective or moves the policy too far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, MissingSignal
from gxpo.registry import part
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def predicted(probability: Tensor, norm: Tensor, credit: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    """Predicted effect of each token's own update: (change of A pi / pi_old, half the Fisher norm of the step).

    probability  [n] p of the sampled token;   norm  [n] |h|_1 of the state h it is chosen in;   credit  [n] A
    lr           of the step

    In the head's weights the token's gradient is g = A (e_a - p) h^T, and the step D = lr sign(g) is Adam's first one.
    Then everything depends on p_a, |h|_1 and A alone; with s = 2 (1 - p_a) |h|_1 lr
      m_H = g.D + D.H.D / 2 = |A| s + A (s^2 - 4 p_a (1 - p_a) |h|_1^2 lr^2) / 2
      m_F = D.F.D / 2       = s^2 / 2
    H is the exact Hessian of A pi / pi_old, F = (e_a - p)(e_a - p)^T outer h h^T. [n] float64 each.
    """
    p, size, a = probability.to(torch.float64), lr * norm.to(torch.float64), credit.to(torch.float64)
    step = 2 * (1 - p) * size
    gain = a.abs() * step + a * (step.square() - 4 * p * (1 - p) * size.square()) / 2
    return gain, step.square() / 2


@torch.no_grad()
def within(gain: Tensor, shift: Tensor, where: Tensor, reject: float = 0.08) -> Tensor:
    """low <= gain <= high and shift <= most, for quantile bounds that drop at most `reject` of `where`; [n] bool.

    Each bound is a quantile that at most reject / 3 of the members of `where` lie beyond; `low` is never above 0, so
    that no token is dropped for a small gain. All are kept where `where` is empty.
    """
    one = torch.zeros(gain.shape, dtype=torch.int64)
    if not bool(where.any()):
        return torch.ones_like(where)
    q = 1 - reject / 3
    low = (-levels.quantile(-gain, one, q, where, "inverted_cdf")).clamp_max(0.0)
    high, most = (levels.quantile(x, one, q, where, "inverted_cdf") for x in (gain, shift))
    return (low <= gain) & (gain <= high) & (shift <= most)


@part("curvature", stage="weight")
@dataclass(frozen=True)
class Curvature(WeightPart):
    """Token mask: 1 where the predicted effect of the token's update is `within` the bounds, else 0.

    lr      learning rate that the prediction is made for; the update's
    reject  largest share of the trainable tokens with non-zero advantage that is dropped
    max_gain, max_shift  in the place of `reject`: kept is |m_H| < max_gain and m_F < max_shift, as in the authors' code

    Reads signal `state_norm` [P] and the policy at the start of the step. Bounds are over the step's compared
    trajectories. What is left out stays in the denominators.

    Source: CAPO, arXiv 2510.00819, and its code: fixed thresholds there, tuned to reject fewer than 8 % of tokens.
    """

    lr: float = 1e-6
    reject: float = 0.08
    max_gain: float | None = None
    max_shift: float | None = None

    needs = ("state_norm",)

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ConfigError(f"weight.curvature.lr is {self.lr}; it is the learning rate, above 0")
        if not 0 <= self.reject < 1:
            raise ConfigError(f"weight.curvature.reject is {self.reject}; it is a share from 0 to below 1")
        for name in ("max_gain", "max_shift"):
            bound = getattr(self, name)
            if bound is not None and not bound > 0:
                raise ConfigError(f"weight.curvature.{name} is {bound}; it is a bound above 0, or null")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        entries = (forest.path_trainable & (credit != 0)).nonzero().squeeze(1)
        logprob, norm = signals["proximal_logprob"][entries], signals["state_norm"][entries]
        if missing := int((logprob.isnan() | norm.isnan()).sum()):
            raise MissingSignal(f"proximal_logprob or state_norm is nan for {missing} of {entries.numel()} tokens")
        gain, shift = predicted(logprob.clamp_max(0.0).exp(), norm, credit[entries], self.lr)
        if self.max_gain is None and self.max_shift is None:
            kept = within(gain, shift, forest.compared[forest.path_trajectory[entries]], self.reject)
        else:
            most_gain, most_shift = (math.inf if x is None else x for x in (self.max_gain, self.max_shift))
            kept = (gain.abs() < most_gain) & (shift < most_shift)
        weight = torch.ones(forest.n_entries, dtype=torch.float64)
        weight[entries] = kept.to(torch.float64)
        return weight
