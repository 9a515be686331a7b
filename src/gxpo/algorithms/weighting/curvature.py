"""Second-order effect of each token's own update on the objective and the policy (CAPO), and bounds on it."""

from __future__ import annotations

import torch
from torch import Tensor

from gxpo.forest import grouped


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
    prob, scaled_norm, advantage = probability.to(torch.float64), lr * norm.to(torch.float64), credit.to(torch.float64)
    # s of the docstring, and with it m_H and m_F
    logit_step = 2 * (1 - prob) * scaled_norm
    gain = (
        advantage.abs() * logit_step
        + advantage * (logit_step.square() - 4 * prob * (1 - prob) * scaled_norm.square()) / 2
    )
    return gain, logit_step.square() / 2


@torch.no_grad()
def within(gain: Tensor, shift: Tensor, where: Tensor, reject: float = 0.08) -> Tensor:
    """Mask of low <= gain <= high and shift <= most, for bounds that drop at most `reject` of `where`; [n] bool.

    Each bound is a quantile that at most reject / 3 of the members of `where` lie beyond; `low` is never above 0, so
    that no token is dropped for a small gain. All are kept where `where` is empty.
    """
    one_group = torch.zeros(gain.shape, dtype=torch.int64)
    if not bool(where.any()):
        return torch.ones_like(where)
    # three bounds share the quota of rejected tokens
    q = 1 - reject / 3
    low = (-grouped.quantile(-gain, one_group, q, where, "inverted_cdf")).clamp_max(0.0)
    high, most = (grouped.quantile(x, one_group, q, where, "inverted_cdf") for x in (gain, shift))
    return (low <= gain) & (gain <= high) & (shift <= most)
