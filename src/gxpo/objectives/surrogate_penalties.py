"""Surrogates without a hard clip: sigmoid (SAPO), quadratic (SPO, R2VPO), discovered drift (DPO), BPO, KL-Cov."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import CheckpointError
from gxpo.objectives.surrogate import Entries, Positive, Share, Surrogate, Width
from gxpo.objectives.surrogate_clips import covariance, quota
from gxpo.registry import part


@part("sigmoid", stage="surrogate")
@dataclass(frozen=True)
class Sigmoid(Surrogate):
    """Sigmoid soft clip (SAPO): -A (4 / tau) sigmoid(tau (rho - 1)), tau_positive for A > 0, tau_negative for A < 0.

    The slope in log rho is -A rho 4 p (1 - p), p the sigmoid: that of -A rho at ratio 1 and less wherever else. The
    greater tau, the sooner it fades.

    Source: SAPO, arXiv 2511.20347. The value at ratio 1 is -2 A / tau, so with two temperatures the loss is not 0 on
    policy.
    """

    tau_positive: Positive = 1.0
    tau_negative: Positive = 1.05

    def loss(self, x: Entries) -> Tensor:
        tau = x.by_sign(self.tau_positive, self.tau_negative)
        return -x.credit * (4 / tau) * torch.sigmoid(tau * (x.ratio - 1))

    def clipped(self, x: Entries) -> Tensor:
        """Clipped tokens: all of non-zero advantage whose ratio is not exactly 1."""
        return (x.credit != 0) & (x.ratio != 1)


@part("drift", stage="surrogate")
@dataclass(frozen=True)
class Drift(Surrogate):
    """Discovered drift: -A rho + relu(z - s tanh(z / s)), with z = (rho - 1) A, s = drift_positive for A > 0, and
    z = A log rho, s = drift_negative for A < 0.

    The drift is 0, with gradient 0, at rho = 1 and wherever the policy moved against the advantage. For A > 0 the slope
    in log rho is -A rho (1 - tanh^2(z / s)), never turned; for A < 0 it is |A| (rho - tanh^2(z / s)): tokens whose
    probability fell far are pulled up again.

    Source: DPO, arXiv 2210.05639 (constants 2 and 0.6).
    """

    drift_positive: Positive = 2.0
    drift_negative: Positive = 0.6

    def _gain(self, x: Entries) -> Tensor:
        """Gain z of the advantage so far."""
        return x.credit * torch.where(x.credit > 0, x.ratio - 1, x.log_level)

    def loss(self, x: Entries) -> Tensor:
        gain, scale = self._gain(x), x.by_sign(self.drift_positive, self.drift_negative)
        kept = scale * (gain / scale).tanh()
        risen = -x.credit - kept  # the same for A > 0 and a gain, without the ratio, which may have overflowed
        return torch.where((x.credit > 0) & (gain > 0), risen, (gain - kept).relu() - x.credit * x.ratio)

    def clipped(self, x: Entries) -> Tensor:
        """Tokens with a gain: their gradient is smaller than that of -A rho, or reversed."""
        return self._gain(x) > 0


def quadratic(ratio: Tensor, credit: Tensor, coefficient: Tensor) -> Tensor:
    """Quadratic surrogate, [n]: -A rho + c (rho - 1)^2.

    Its slope in log rho is -rho (A - 2 c (rho - 1)), 0 at rho = 1 + A / (2 c).

    >>> one = torch.ones(3, dtype=torch.float64)
    >>> quadratic(torch.tensor([1.0, 1.2, 2.0], dtype=torch.float64), one, 2.5 * one).tolist()
    [-1.0, -1.1, 0.5]
    """
    off = ratio - 1
    pull = torch.where(coefficient == 0, torch.zeros_like(off), coefficient * off)
    return off * (pull - credit) - credit  # the same, without infinity less infinity where the ratio has overflowed


class _Quadratic(Surrogate):
    """Quadratic surrogate with a coefficient for each token."""

    @abstractmethod
    def coefficient(self, credit: Tensor) -> Tensor:
        raise NotImplementedError

    def loss(self, x: Entries) -> Tensor:
        return quadratic(x.ratio, x.credit, self.coefficient(x.credit))

    def clipped(self, x: Entries) -> Tensor:
        """Tokens that moved in the direction of their advantage: gradient smaller than that of -A rho, or reversed."""
        return (x.credit * (x.ratio - 1) > 0) & (self.coefficient(x.credit) > 0)


@part("quadratic_penalty", stage="surrogate")
@dataclass(frozen=True)
class QuadraticPenalty(_Quadratic):
    """Quadratic penalty on the ratio (SPO): -A rho + |A| (rho - 1)^2 / (2 width).

    Least at rho = 1 + width for A > 0, at 1 - width for A < 0.

    width  where the optimum lies, relative to 1

    Beyond the optimum the gradient turns round, where PPO's is 0. The value grows with rho^2. Source: SPO,
    arXiv 2401.16025, and its code.
    """

    width: Positive = 0.2

    def coefficient(self, credit: Tensor) -> Tensor:
        return credit.abs() / (2 * self.width)


@part("ratio_variance", stage="surrogate")
@dataclass(frozen=True)
class RatioVariance(_Quadratic):
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

    def coefficient(self, credit: Tensor) -> Tensor:
        return self._memory["penalty"] * (credit != 0).to(credit)

    def metrics(self, x: Entries) -> Mapping[str, float]:
        return {"ratio_variance": float((x.ratio - 1).square().mean())}

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
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


@part("ratio_target", stage="surrogate")
@dataclass(frozen=True)
class RatioTarget(Surrogate):
    """Regression of the ratio on a bounded target (BPO): |A| |rho - rho*|.

    rho* = 1 - clip_low + (clip_low + clip_high) sigmoid(m / temperature).

    m is the advantage less its group's median (`Entries.standing`): rho* is 1 + clip_high above the median and
    1 - clip_low below it; on it, 1 + (clip_high - clip_low) / 2, which is 1 for equal widths.

    clip_low, clip_high  relative to 1
    temperature          in units of advantage; 0: the bounds themselves

    The gradient is that of -A rho until the target, where the clip's ends, and the opposite beyond it; 0 on the target
    itself, to the precision of two forward passes. A token of median advantage is held at its target. Of all
    policies of bounded ratio, rho* is the one of greatest advantage.

    Source: BPO, arXiv 2604.18578 (the advantage-weighted total variation), and its code.
    """

    clip_low: Width = 0.2
    clip_high: Width = 0.2
    temperature: Width = field(default=0.0, kw_only=True)

    couples = "group"

    def target(self, x: Entries) -> Tensor:
        """Target ratio rho* of each token."""
        above = x.credit if x.standing is None else x.standing
        share = (1 + above.sign()) / 2 if self.temperature == 0 else torch.sigmoid(above / self.temperature)
        return 1 - self.clip_low + (self.clip_low + self.clip_high) * share

    def _off(self, x: Entries) -> Tensor:
        """rho - rho*, without a gradient where its sign would be that of the rounding."""
        target = self.target(x)
        off = x.ratio - target
        return torch.where(off.detach().abs() <= levels.FORWARD * target, 0.0, off)

    def loss(self, x: Entries) -> Tensor:
        return x.credit.abs() * self._off(x).abs()

    def clipped(self, x: Entries) -> Tensor:
        """Tokens on their target, without a gradient, and beyond it, where it is reversed."""
        off = self._off(x)
        return ((x.credit > 0) & (off >= 0)) | ((x.credit < 0) & (off <= 0))


@part("covariance_penalty", stage="surrogate")
@dataclass(frozen=True)
class CovariancePenalty(Surrogate):
    """KL-Cov: -A rho, and + drift_coef |log rho| for the tokens of highest `covariance`; nothing is clipped.

    covariance_share  max(1, share of the step's trained tokens) of them are held back
    drift_coef        of the penalty

    On policy the penalty has no gradient: it takes several updates a step to act. -A rho is unbounded where A < 0.

    Source: arXiv 2505.22617, as in verl, where the set is a micro-batch.
    """

    covariance_share: Share = 2e-4
    drift_coef: Width = 1.0

    couples = "step"

    @torch.no_grad()
    def held(self, x: Entries) -> Tensor:
        """Tokens that are penalised, [n] bool; of equals, the earlier."""
        order = torch.argsort(covariance(x.logprob, x.credit), descending=True, stable=True)
        taken = torch.zeros(x.credit.shape, dtype=torch.bool)
        taken[order[: quota(self.covariance_share, len(order))]] = True
        return taken

    def loss(self, x: Entries) -> Tensor:
        return super().loss(x) + torch.where(self.held(x), self.drift_coef * x.log_ratio.abs(), 0.0)

    def clipped(self, x: Entries) -> Tensor:
        return self.held(x) & (x.log_ratio != 0)
