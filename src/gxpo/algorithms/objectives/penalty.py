"""KL penalties (to the reference policy and to the old one; in the loss and in the reward) and the entropy bonus.

`kl_estimate` has the estimators k1, k2, k3. `Penalty` is the base of the terms: a coefficient times the aggregate of a
quantity over the trainable tokens. `KLReward` takes the KL from the outcomes instead.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, TermPart, coefficients
from gxpo.algorithms.objectives.control import Control, Width, annealed
from gxpo.algorithms.objectives.surrogate import denominator
from gxpo.base.errors import ConfigError, GxpoError, MissingSignal, one_of
from gxpo.parts.definition import kind_of
from gxpo.parts.named_columns import TRAJECTORY
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals

Estimator = Literal["k1", "abs", "k2", "k3", "k3+"]
ESTIMATORS = ("k1", "abs", "k2", "k3", "k3+")


def kl_estimate(logprob: Tensor, reference: Tensor, estimator: str = "k3") -> Tensor:
    """Estimate of KL(policy || reference) from each sampled token, with d = reference - logprob.

    k1   -d              unbiased value
    abs  |d|             biased value, 0 only where the policies agree; its slope at d = 0 is taken to be 0
    k2   d^2 / 2         biased value (small where the policies are close)
    k3   e^d - 1 - d     unbiased value, never negative
    k3+  k3, its derivative replaced by that of k2, which is -d (straight-through)

    What the choice does, for tokens sampled from the policy itself (exact over the vocabulary; docs/kl.md has all):
      differentiated as a loss   k1: expected gradient 0, it does nothing; k2, k3+: exactly grad KL(policy ||
                                 reference); k3: the gradient of KL(reference || policy), close to but not the other
                                 one; k3 times the ratio, both differentiated: exact
      detached, in the reward    k1: exact; the others: not
    No clamps: some trainers clamp d to +-20 and k3 to +-10, and have no gradient beyond.

    Source: Schulman, "Approximating KL divergence", 2020; GRPO (arXiv 2402.03300, eq. 4) uses k3 as a loss.
    """
    one_of("objective.kl.estimator", estimator, ESTIMATORS)
    # the reference is frozen: nothing may flow into it, whatever the caller hands in
    d = reference.detach() - logprob
    if estimator in ("k1", "abs"):
        return -d if estimator == "k1" else d.abs()
    k2 = d.square() / 2
    if estimator == "k2":
        return k2
    # k3+ is straight-through: value of k3, derivative of k2
    k3 = d.expm1() - d
    return k3 if estimator == "k3" else (k3 - k2).detach() + k2


@torch.no_grad()
def penalised_outcome(
    outcome: Tensor, kl: Tensor, trajectory: Tensor, coef: float, where: Tensor | None = None
) -> Tensor:
    """KL-penalised outcomes: outcome - coef * (sum of the trajectory's per-token estimates).

    outcome     [R]; nan (unscored) stays nan
    kl          [P] `kl_estimate` of the policy at the start of the step; k1 gives the exact KL gradient
    trajectory  [P] index into R
    where       [P] bool, tokens that count: the trainable ones (default: all)

    Apply it before any group statistic: the KL then enters the group's mean and std. Returns [R] float64.
    """
    counted_kl_P = kl.to(torch.float64)
    if where is not None:
        counted_kl_P = torch.where(where, counted_kl_P, torch.zeros_like(counted_kl_P))
    total_kl_R = torch.zeros(outcome.shape, dtype=torch.float64).index_add_(0, trajectory, counted_kl_P)
    return outcome.to(torch.float64) - coef * total_kl_R


@dataclass(frozen=True)
class KLReward:
    """KL penalty in the reward: `penalised_outcome` with the policy at the start of the step, before group statistics.

    to     "reference", or "teacher": the signal "teacher_token_logprob" (`signal.NAME: teacher_model`)
    rollouts  "all" rollouts, or those that are "wrong" by their verdict (without one: of an outcome of 0 or less)

    Only the outcome is penalised; step rewards are left as they are. REINFORCE++ and RLOO have k1 here;
    k3 and k3+ are the same, since nothing is differentiated.
    """

    coef: float
    estimator: Estimator = "k3"
    to: str = "reference"
    rollouts: str = "all"

    def __post_init__(self) -> None:
        one_of("objective.kl.estimator", self.estimator, ESTIMATORS)
        one_of("objective.kl.to", self.to, ("reference", "teacher"))
        one_of("objective.kl.rollouts", self.rollouts, ("all", "wrong"))

    @property
    def needs(self) -> tuple[str, ...]:
        """The signal that the policy is compared with."""
        return ("reference_logprob" if self.to == "reference" else "teacher_token_logprob",)

    def penalise(self, forest: Forest, signals: Signals) -> Forest:
        """Forest with the penalty subtracted from its outcomes. Raises MissingSignal where a log-prob is unknown."""
        (name,) = self.needs
        estimate = kl_estimate(signals["proximal_logprob"], signals[name], self.estimator)
        trainable = forest.path_trainable
        if missing := int((estimate.isnan() & trainable).sum()):
            raise MissingSignal(
                f"objective.kl in the reward: proximal_logprob or {name} is nan for {missing} of "
                f"{int(trainable.sum())} trainable tokens"
            )
        if self.rollouts == "wrong":
            trainable = trainable & ~forest.to_path(TRAJECTORY["correct"](forest), "R")
        outcome = penalised_outcome(forest.outcome, estimate, forest.path_trajectory, self.coef, where=trainable)
        return forest.replace(outcome=outcome)


@dataclass(frozen=True)
class Penalty(TermPart):
    """Penalty term: sign * coef * aggregate of `quantity` over the trainable tokens, with its own aggregation.

    Not importance weighted: weight parts do not touch it, `forest.weight` does. At coef 0 it reads nothing. Figures:
    NAME, the mean over the active tokens before `coef`; NAME_coef, the coefficient, where a control moves it.

    control  moves the coefficient from step to step; `coef` is where it starts. A figure that it
             follows is measured on the policy at the start of the step while the coefficient is 0
    """

    coef: Width = 0.0
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum"] = "sequence_mean"
    horizon: float | None = None
    control: Control | None = None

    name = ""  # in keys (objective.NAME.coef) and metrics
    sign = 1.0

    @property
    def current_coef(self) -> float:
        """Coefficient of this step."""
        return self.coef if self.control is None else self.control.coefficient(self.coef)

    @property
    def is_ever_used(self) -> bool:
        """True if the coefficient is not 0, or a control may move it from there."""
        return self.coef != 0 or (self.control is not None and self.control.from_zero)

    @property
    def needs_start_value(self) -> bool:
        """True if the control follows this quantity, which must be known while the coefficient is 0 too."""
        return self.control is not None and self.control.follows == self.name

    @abstractmethod
    def quantity(self, forest: Forest, policy: PolicyTokens, entries: Tensor) -> Tensor:
        """Value of the quantity at these tokens, in the dtype of `policy.logprob`; never called without tokens."""
        raise NotImplementedError

    def scale(self, forest: Forest) -> Tensor:
        """Coefficients of the aggregation, [P]."""
        return coefficients(forest.path_trajectory, forest.path_trainable, self.aggregate, self.horizon)

    def start_value(self, forest: Forest, signals: Signals) -> float | None:
        """Mean of the quantity on the policy at the start of the step; None where the signals lack it."""
        return None

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        scale_P = self.sign * self.current_coef * self.scale(forest) * forest.to_path(forest.weight, "R")
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        value = self.quantity(forest, policy, entries) if entries.numel() else policy.logprob[entries]
        figures = {} if self.control is None else {f"{self.name}_coef": self.current_coef}
        if entries.numel():
            figures[self.name] = float(value.detach().mean())
        # off (coefficient 0) nothing is active, but a control that follows the quantity still has to see it
        elif self.needs_start_value and (start := self.start_value(forest, signals)) is not None:
            figures[self.name] = start
        return (scale_P[entries].to(value) * value).sum(), figures

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of trajectories of non-zero `forest.weight`."""
        if self.current_coef == 0:
            return torch.zeros_like(forest.path_trainable)
        return forest.path_trainable & (forest.to_path(forest.weight, "R") != 0)


@part("kl", stage="term")
@dataclass(frozen=True)
class KL(Penalty):
    """KL penalty in the loss: coef * aggregate of `kl_estimate` over the trainable tokens.

    ratio_weighted        the estimate times the token's ratio, differentiated in full. With k3 (and k1) the expected
                          gradient is then that of KL(policy || reference), under any rollout policy
    ratio_over            what that ratio divides by: "proximal" (where the step has one, else behaviour) | "behaviour"
    on_unknown_behaviour  where that log-prob is nan: "error" | "one"

    Reads `policy.reference_logprob`; raises MissingSignal where that is absent. DeepSeekMath has k3 with coef 0.04;
    DeepSeek-V3.2 (arXiv 2512.02556) k3 times the ratio.
    """

    slot = "objective.kl"
    estimator: Estimator = "k3"
    ratio_weighted: bool = False
    ratio_over: Literal["proximal", "behaviour"] = "proximal"
    on_unknown_behaviour: Literal["error", "one"] = "error"

    name = "kl"

    def __post_init__(self) -> None:
        if self.ratio_weighted and self.estimator == "k3+":
            raise ConfigError(
                "objective.kl.ratio_weighted corrects the derivative of k3 itself, k3+ has another: set "
                "objective.kl.estimator=k3"
            )
        needs = ("reference_logprob", "proximal_logprob") if self.needs_start_value else ("reference_logprob",)
        object.__setattr__(self, "needs", needs if self.is_ever_used else ())

    def quantity(self, forest: Forest, policy: PolicyTokens, entries: Tensor) -> Tensor:
        if policy.reference_logprob is None:
            raise MissingSignal("objective.kl needs reference_logprob: give a reference, or set objective.kl.coef to 0")
        logprob = policy.logprob[entries]
        reference = policy.reference_logprob[entries].to(logprob)
        if missing := int(reference.isnan().sum()):
            raise MissingSignal(f"objective.kl: reference_logprob is nan for {missing} of {entries.numel()} tokens")
        if not self.ratio_weighted:
            return kl_estimate(logprob, reference, self.estimator)
        # these tokens alone: the denominator of the others may be unknown, which is no error here
        trainable = torch.ones_like(entries, dtype=torch.bool)
        below = denominator(policy.index(entries), trainable, self.ratio_over, self.on_unknown_behaviour)
        ratio = (logprob - below).exp()
        if self.estimator != "k3":
            return ratio * kl_estimate(logprob, reference, self.estimator)
        d = reference - logprob
        # rho e^d is constant, but 0 times infinity where the policy has left a token: there rho k3 is written out
        is_far = d.detach() > 30.0
        near = kl_estimate(torch.where(is_far, reference, logprob), reference, "k3")
        return torch.where(is_far, (reference - below).exp() - ratio * (1.0 + d), ratio * near)

    def start_value(self, forest: Forest, signals: Signals) -> float | None:
        """Mean KL estimate of the policy at the start of the step."""
        if "reference_logprob" not in signals or not bool(forest.path_trainable.any()):
            return None
        entries = forest.path_trainable
        logprob, reference = signals["proximal_logprob"][entries], signals["reference_logprob"][entries]
        return float(kl_estimate(logprob, reference.to(logprob), self.estimator).mean())


@part("entropy", stage="term")
@dataclass(frozen=True)
class Entropy(Penalty):
    """Entropy bonus: -coef * mean entropy (nats) of the policy at the trainable tokens.

    The aggregation does not follow the policy term's: by default it is the plain mean over tokens, so that the bonus is
    coef times the mean entropy that is logged, under every objective. Reads `policy.entropy`; raises MissingSignal
    where that is absent.
    """

    slot = "objective.entropy"
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"

    name = "entropy"
    sign = -1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "outputs", ("logprob", "entropy") if self.is_ever_used else ("logprob",))

    def quantity(self, forest: Forest, policy: PolicyTokens, entries: Tensor) -> Tensor:
        if policy.entropy is None:
            raise MissingSignal("objective.entropy needs the policy's entropy: give it, or set its coef to 0")
        return policy.entropy[entries].to(policy.logprob.dtype)


def mirror_kl(log_ratio: Tensor) -> Tensor:
    """Estimate of KL(policy || old) at tokens that the old policy sampled, [n]: rho log rho - rho + 1.

    Unbiased, never negative, 0 at rho = 1. Its derivative in the log-prob is rho log rho, exactly 0 on policy, where
    that of rho log rho alone is 1: the two differ by rho - 1, whose expectation is 0.

    log_ratio  [n] log policy - log old, carries the gradient

    Source: MDPO, arXiv 2005.09814 (the KL with the new policy first, unlike TRPO's).
    """
    # near 1 by expm1, since all digits of d^2 / 2 would be lost beside 1; far from it factored: rho log rho - rho would
    # be infinity less infinity where the ratio has overflowed
    near = log_ratio.clamp(-1.0, 1.0)
    far = log_ratio.exp() * (log_ratio - 1.0) + 1.0
    return torch.where(log_ratio.abs() < 1.0, near.exp() * near - torch.expm1(near), far)


@part("mirror_kl", stage="term")
@dataclass(frozen=True)
class MirrorKl(Penalty):
    """Mirror-descent KL: coef * aggregate of `mirror_kl` over the trainable tokens; old is the policy at the start of
    the step, or the rollout policy where the step has no other.

    coef         1 / t at the start of the run, t the step size of mirror descent
    min_step, total_steps  of the control that divides it by 1 - k / total_steps, unless another is given: see
                 `annealed`; min_step 1 leaves the coefficient as it is

    Needs several updates a step: on the first it has no gradient.
    """

    slot = "objective.add.NAME"
    coef: Width = 1.0
    min_step: float = 0.05
    total_steps: int | None = None

    name = "mirror_kl"
    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        # `min_step` and `total_steps` are options of the default control; another kind of control replaces it whole
        kind = kind_of(annealed)
        if self.control is None or isinstance(self.control, kind):
            object.__setattr__(self, "control", kind(min_step=self.min_step, total_steps=self.total_steps))

    def quantity(self, forest: Forest, policy: PolicyTokens, entries: Tensor) -> Tensor:
        logprob = policy.logprob[entries]
        old = policy.behaviour_logprob if policy.proximal_logprob is None else policy.proximal_logprob
        below = old.detach()[entries].to(logprob)
        if missing := int(below.isnan().sum()):
            raise GxpoError(
                f"objective.add.mirror_kl: {missing} of {entries.numel()} trained tokens have no log-prob of the old "
                "policy: record `logprob` for them, or give a proximal policy"
            )
        return mirror_kl(logprob - below)
