"""Surrogates without a hard clip: sigmoid (SAPO), quadratic (SPO, R2VPO), discovered drift (DPO), BPO, KL-Cov."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gxpo.algorithms.objectives.surrogate import Entries, Positive, Share, Surrogate, Width
from gxpo.algorithms.objectives.surrogate_clips import covariance, quota
from gxpo.base.errors import CheckpointError
from gxpo.forest import grouped
from gxpo.parts.registry import part


@part("sigmoid", stage="surrogate")
def sigmoid(x: Entries, *, tau_positive: Positive = 1.0, tau_negative: Positive = 1.05) -> tuple[Tensor, Tensor]:
    """Sigmoid soft clip (SAPO): -A (4 / tau) sigmoid(tau (rho - 1)), tau_positive for A > 0, tau_negative for A < 0.

    The slope in log rho is -A rho 4 p (1 - p), p the sigmoid: that of -A rho at ratio 1 and less wherever else. The
    greater tau, the sooner it fades. Counted as clipped: all tokens whose ratio is not exactly 1.

    Source: SAPO, arXiv 2511.20347. The value at ratio 1 is -2 A / tau, so with two temperatures the loss is not 0 on
    policy.
    """
    tau = x.by_sign(tau_positive, tau_negative)
    return -x.credit * (4 / tau) * torch.sigmoid(tau * (x.ratio - 1)), (x.credit != 0) & (x.ratio != 1)


@part("drift", stage="surrogate")
def drift(x: Entries, *, drift_positive: Positive = 2.0, drift_negative: Positive = 0.6) -> tuple[Tensor, Tensor]:
    """Discovered drift: -A rho + relu(z - s tanh(z / s)), with z = (rho - 1) A, s = drift_positive for A > 0, and
    z = A log rho, s = drift_negative for A < 0.

    The drift is 0, with gradient 0, at rho = 1 and wherever the policy moved against the advantage. For A > 0 the slope
    in log rho is -A rho (1 - tanh^2(z / s)), never turned; for A < 0 it is |A| (rho - tanh^2(z / s)): tokens whose
    probability fell far are pulled up again. Counted as clipped: tokens of z > 0.

    Source: DPO, arXiv 2210.05639 (constants 2 and 0.6).
    """
    gain = x.credit * torch.where(x.credit > 0, x.ratio - 1, x.log_level)
    scale = x.by_sign(drift_positive, drift_negative)
    # relu(z - s tanh(z / s)) penalises a gain z only as far as it exceeds its soft bound s
    drift_bound = scale * (gain / scale).tanh()
    # the same value for A > 0 and a gain, written without the ratio, which may have overflowed
    loss_of_gain = -x.credit - drift_bound
    loss = torch.where((x.credit > 0) & (gain > 0), loss_of_gain, (gain - drift_bound).relu() - x.credit * x.ratio)
    return loss, gain > 0


def quadratic(x: Entries, coefficient: Tensor) -> tuple[Tensor, Tensor]:
    """Quadratic surrogate -A rho + c (rho - 1)^2, [n], and the tokens that moved in the direction of their advantage,
    [n] bool: their gradient is smaller than that of -A rho, or reversed, and they count as clipped.

    The slope in log rho is -rho (A - 2 c (rho - 1)), 0 at rho = 1 + A / (2 c).

    coefficient  c [n], 0 or more

    >>> one = torch.ones(3, dtype=torch.float64)
    >>> quadratic(Entries.of(torch.tensor([1.0, 1.2, 2.0], dtype=torch.float64), one), 2.5 * one)[0].tolist()
    [-1.0, -1.1, 0.5]
    """
    distance = x.ratio - 1
    pull = torch.where(coefficient == 0, torch.zeros_like(distance), coefficient * distance)
    # factored: -A rho + c (rho - 1)^2 would be infinity less infinity where the ratio has overflowed
    loss = distance * (pull - x.credit) - x.credit
    return loss, (x.credit * distance > 0) & (coefficient > 0)


@part("quadratic_penalty", stage="surrogate")
def quadratic_penalty(x: Entries, *, width: Positive = 0.2) -> tuple[Tensor, Tensor]:
    """Quadratic penalty on the ratio (SPO): -A rho + |A| (rho - 1)^2 / (2 width).

    Least at rho = 1 + width for A > 0, at 1 - width for A < 0.

    width  where the optimum lies, relative to 1

    Beyond the optimum the gradient turns round, where PPO's is 0. The value grows with rho^2. Source: SPO,
    arXiv 2401.16025, and its code.
    """
    return quadratic(x, x.credit.abs() / (2 * width))


@part("ratio_variance", stage="surrogate")
@dataclass(frozen=True)
class RatioVariance(Surrogate):
    """Penalty on the ratio's variance (R2VPO): -A rho + c (rho - 1)^2, c the multiplier of mean (rho - 1)^2 <= limit.

    c is the same for all tokens of non-zero advantage.

    c <- max(0, c + penalty_rate (mean (rho - 1)^2 - variance_max)), once per trainer step, from its figures.

    penalty       where c starts;   penalty_rate  0: it stays there
    variance_max  the limit; (rho - 1)^2 / 2 is the KL divergence to second order

    Metrics: `ratio_variance`, mean (rho - 1)^2 over the active entries, and `ratio_penalty`, what c is after the step.

    Source: R2VPO, arXiv 2601.03320.
    """

    penalty: Width = 0.04
    variance_max: Width = 0.04
    penalty_rate: Width = 0.1
    _memory: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._memory["penalty"] = self.penalty

    def _quadratic(self, x: Entries) -> tuple[Tensor, Tensor]:
        return quadratic(x, self._memory["penalty"] * (x.credit != 0).to(x.credit))

    def loss(self, x: Entries) -> Tensor:
        return self._quadratic(x)[0]

    def clipped(self, x: Entries) -> Tensor:
        return self._quadratic(x)[1]

    def metrics(self, x: Entries) -> Mapping[str, float]:
        return {"ratio_variance": float((x.ratio - 1).square().mean())}

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Dual ascent on the multiplier, after a step that measured the variance."""
        if "ratio_variance" in figures:
            excess = figures["ratio_variance"] - self.variance_max
            self._memory["penalty"] = max(0.0, self._memory["penalty"] + self.penalty_rate * excess)
        return {"ratio_penalty": self._memory["penalty"]}

    def state_dict(self) -> dict[str, Any]:
        return dict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != set(self._memory):
            raise CheckpointError(f"the checkpoint's surrogate state has {sorted(state)}: is it of ratio_variance?")
        self._memory.update(penalty=float(state["penalty"]))


@part("ratio_target", stage="surrogate", couples="group")
def ratio_target(
    x: Entries, *, clip_low: Width = 0.2, clip_high: Width = 0.2, temperature: Width = 0.0
) -> tuple[Tensor, Tensor]:
    """Regression of the ratio on a bounded target (BPO): |A| |rho - rho*|.

    rho* = 1 - clip_low + (clip_low + clip_high) sigmoid(m / temperature).

    m is the advantage less its group's median (`Entries.standing`): rho* is 1 + clip_high above the median and
    1 - clip_low below it; on it, 1 + (clip_high - clip_low) / 2, which is 1 for equal widths.

    clip_low, clip_high  relative to 1
    temperature          in units of advantage; 0: the bounds themselves

    The gradient is that of -A rho until the target, where the clip's ends, and the opposite beyond it; 0 on the target
    itself, to the precision of two forward passes. A token of median advantage is held at its target. Of all
    policies of bounded ratio, rho* is the one of greatest advantage. Counted as clipped: tokens on their target, and
    beyond it.

    Source: BPO, arXiv 2604.18578 (the advantage-weighted total variation), and its code.
    """
    median_gap = x.credit if x.standing is None else x.standing
    # temperature 0 is the limit of the sigmoid, a step that is 1/2 at the median
    share = (1 + median_gap.sign()) / 2 if temperature == 0 else torch.sigmoid(median_gap / temperature)
    target = 1 - clip_low + (clip_low + clip_high) * share
    distance = x.ratio - target
    # within the error of two forward passes the sign of the distance, and so the gradient, would be that of rounding
    distance = torch.where(distance.detach().abs() <= grouped.FORWARD * target, 0.0, distance)
    return x.credit.abs() * distance.abs(), ((x.credit > 0) & (distance >= 0)) | ((x.credit < 0) & (distance <= 0))


@part("covariance_penalty", stage="surrogate", couples="step")
def covariance_penalty(x: Entries, *, covariance_share: Share = 2e-4, drift_coef: Width = 1.0) -> tuple[Tensor, Tensor]:
    """KL-Cov: -A rho, and + drift_coef |log rho| for the tokens of highest `covariance`; nothing is clipped.

    covariance_share  max(1, share of the step's trained tokens) of them are held back; of equals, the earlier
    drift_coef        of the penalty

    On policy the penalty has no gradient: it takes several updates a step to act. -A rho is unbounded where A < 0.

    Source: arXiv 2505.22617, as in verl, where the set is a micro-batch.
    """
    # stable: of equal covariances the earlier tokens are penalised, on every machine
    order = torch.argsort(covariance(x.logprob, x.credit), descending=True, stable=True)
    is_penalised = torch.zeros(x.credit.shape, dtype=torch.bool)
    is_penalised[order[: quota(covariance_share, len(order))]] = True
    loss = -x.credit * x.ratio + torch.where(is_penalised, drift_coef * x.log_ratio.abs(), 0.0)
    return loss, is_penalised & (x.log_ratio != 0)
