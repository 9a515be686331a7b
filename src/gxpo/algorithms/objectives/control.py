"""Controllers and schedules of a term's coefficient: adaptive KL, dual ascent, decay, entropy target."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval

from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.parts.functions import FunctionPart, checked_by, signature
from gxpo.parts.ranges import Part
from gxpo.parts.registry import part
from gxpo.parts.schedule import SHAPES, dip

Width = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Interval(gt=0, le=1)]
Steps = Annotated[int, Ge(1)]


class Control(Part, ABC):
    """Base class of coefficient controllers: frozen dataclasses; the coefficient is constant within a step.

    Terms that hold one call `coefficient`; the trainer calls `adjust` once per step, after the update. What a control
    remembers goes through `state_dict` and `load_state_dict`, so that a resumed run goes on exactly.

    from_zero  whether a coefficient that starts at 0 may become another; one that is only scaled stays there, and its
               term needs nothing
    follows    the figure without which it can't leave 0; its term has it measured then
    """

    slot = "control"
    from_zero: bool = False
    follows: str = ""

    @abstractmethod
    def coefficient(self, start: float) -> float:
        """Current coefficient of a term that was configured with `start`."""
        raise NotImplementedError

    def level(self, start: float) -> float:
        """Coefficient that is remembered, also where the term is off in this step."""
        return self.coefficient(start)

    @abstractmethod
    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Update the controller with the step's metrics and return its own, by metric name.

        figures  by names of metrics.jsonl ("kl", "entropy", "success_rate", "step"...); what the step lacks is absent
        """
        raise NotImplementedError


@dataclass(frozen=True)
class _Remembering(Control):
    """A controller whose state is a few named numbers."""

    _memory: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        return dict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != set(self._memory):
            raise CheckpointError(
                f"the control's part of the checkpoint has {sorted(state)}, not {sorted(self._memory)}: is it of "
                "another control?"
            )
        self._memory.update({name: float(value) for name, value in state.items()})


@part("adaptive_kl", stage="control")
@dataclass(frozen=True)
class AdaptiveKl(_Remembering):
    """Adaptive KL controller: coef <- coef (1 + clip(KL / target - 1, -bound, bound) rollouts / horizon).

    KL is the step's mean estimate.

    target   nats a token
    bound    largest relative error that is acted on
    horizon  in rollouts: the larger, the slower

    Source: Ziegler et al., arXiv 1909.08593, section 2.2 (target 6 nats a sequence, bound 0.2, horizon 10,000).
    """

    target: Positive = 0.06
    bound: Positive = 0.2
    horizon: Positive = 10_000.0

    def __post_init__(self) -> None:
        self._memory["factor"] = 1.0

    def coefficient(self, start: float) -> float:
        return start * self._memory["factor"]

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        if "kl" in figures:
            error = min(max(figures["kl"] / self.target - 1.0, -self.bound), self.bound)
            self._memory["factor"] *= 1.0 + error * figures["trajectories"] / self.horizon
        return {"kl_factor": self._memory["factor"]}


def progress(step: float, total_steps: int | None) -> float:
    """Share of the run that is over after `step` steps, in [0, 1]; ConfigError without a length of the run."""
    if total_steps is None or total_steps < 1:
        raise ConfigError(f"control: total_steps is {total_steps}; say over how many steps the coefficient moves")
    return min(max(step / total_steps, 0.0), 1.0)


@dataclass(frozen=True)
class ByProgress(FunctionPart, _Remembering):
    """Schedules: functions of the coefficient that the term was configured with and of the share of the run that is
    over, to the coefficient.

    total_steps  None: the run's

    Step 1 + k has the coefficient of progress k / total_steps.
    """

    total_steps: Steps | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._memory["progress"] = 0.0

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in signature(self.function).options}

    def coefficient(self, start: float) -> float:
        return self.function(start, self._memory["progress"], **self.options)

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        self._memory["progress"] = progress(figures["step"], self.total_steps)
        return {"schedule_progress": self._memory["progress"]}


def _ends(to: float, shape: str, **_: float) -> str | None:
    if shape == "exponential" and to == 0:
        return "to is 0, which an exponential schedule never reaches: set control.shape=cosine"
    return None


@part("schedule", stage="control", from_zero=True)
@checked_by(_ends)
def schedule(
    start: float,
    progress: float,
    *,
    to: Width = 0.04,
    shape: Literal["linear", "cosine", "exponential", "dip"] = "linear",
    turn: Annotated[float, Interval(gt=0, lt=1)] = 0.3,
) -> float:
    """Schedule of the coefficient from its start to `to` over `total_steps` steps, and `to` from then on.

    to           the last coefficient
    total_steps  None: the run's
    shape        "linear"; "cosine": slow at both ends; "exponential": equal factors (neither end may be 0); "dip": from
                 the middle of the two ends down to the first in the first `turn` of the steps, then up to `to`
    turn         of "dip", a share of the run; GRPO-D, arXiv 2503.16081, eq. 3

    Step 1 has the coefficient that the term was configured with, step 1 + k that of progress k / total_steps.
    """
    if shape == "exponential" and start == 0:
        raise ConfigError("control: an exponential schedule can't start at 0: set control.shape=cosine")
    return dip(start, to, progress, turn) if shape == "dip" else SHAPES[shape](start, to, progress)


@part("two_phase_decay", stage="control")
def two_phase_decay(start: float, progress: float, *, fall: Annotated[float, Interval(ge=0, le=1)] = 0.2) -> float:
    """Two-phase decay of the coefficient, w(p): slow in the first half of `total_steps`, fast in the second.

    p is the progress inside the half.

    w = 1 - fall (1 - e^{-2 p}) first;   w = (1 - fall) e^{-3 p} then

    w falls from 1 to 1 - 0.865 fall, jumps to 1 - fall at the middle, and ends at 0.05 (1 - fall).
    Source: EPO's code (arXiv 2509.22576), with fall 0.2 and 150 epochs, of the penalty's coefficient.
    """
    phases = 2.0 * progress
    if phases < 1:
        return start * (1 - fall * (1 - math.exp(-2 * phases)))
    return start * (1 - fall) * math.exp(-3 * (phases - 1))


@part("annealed", stage="control")
def annealed(start: float, progress: float, *, min_step: Share = 0.05) -> float:
    """Coefficient over a linearly decaying step size: coef / t_k, t_k = max(1 - k / total_steps, min_step).

    min_step     where t stops, above 0
    total_steps  None: the run's

    Step 1 has the coefficient that the term was configured with. Source: MDPO, arXiv 2005.09814 (t_k = 1 - k / K).
    """
    return start / max(1.0 - progress, min_step)


@part("by_accuracy", stage="control")
@dataclass(frozen=True)
class ByAccuracy(_Remembering):
    """Coefficient by accuracy: coef s(slope (accuracy - middle)), s logistic, accuracy the last step's success rate.

    midpoint  accuracy at which half of the coefficient is in force; slope  how sharply it comes in

    Little binds a policy that fails, much one that succeeds: with the defaults the factor is (tanh(accuracy) + 1) / 2,
    from 0.5 to 0.881. Before the first step, and as long as no verdict is known, the coefficient is the configured one.

    Source: FG-ExPO (arXiv 2605.11403), eqs. 4 and 8, where the accuracy is that of the step itself.
    """

    midpoint: float = 0.0
    slope: Width = 2.0

    def __post_init__(self) -> None:
        self._memory["factor"] = 1.0

    def coefficient(self, start: float) -> float:
        return start * self._memory["factor"]

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        rate = figures.get("success_rate")
        if rate is not None and math.isfinite(rate):
            self._memory["factor"] = 1.0 / (1.0 + math.exp(-self.slope * (rate - self.midpoint)))
        return {"accuracy_factor": self._memory["factor"]}


@dataclass(frozen=True)
class _Walk(_Remembering):
    """Coefficient with increments, clamped at 0 from below: c_k = max(0, c_{k-1} + x_k), c_0 the term's start.

    Remembered are s_k = x_1 + ... + x_k and the lowest of 0, s_1, ..., s_k, since c_k = s_k + max(c_0, -lowest).
    """

    from_zero = True

    def _reset(self) -> None:
        self._memory.update(total=0.0, lowest=0.0)

    def _move(self, by: float) -> None:
        self._memory["total"] += by
        self._memory["lowest"] = min(self._memory["lowest"], self._memory["total"])

    def _level(self, start: float) -> float:
        return self._memory["total"] + max(start, -self._memory["lowest"])


@part("entropy_target", stage="control")
@dataclass(frozen=True)
class EntropyTarget(_Walk):
    """Target entropy: below `target` coef += step_size; at or above it coef -= step_size, and the term is off.

    target  nats a token
    step_size  how much a step moves it
    min_coef, max_coef  bounds of the coefficient
    off_until_measured  the term is off until an entropy has been measured

    The entropy is the step's mean over trained tokens; what it decides is in force in the next step. Source: Skywork
    OR1, arXiv 2505.22312 (0.2 nats, 0.005), where the coefficient starts at 0 and has no floor in our source. TRL's
    `use_adaptive_entropy` has the bounds 0 and 1, and waits.
    """

    target: Positive = 0.2
    step_size: Positive = 0.005
    min_coef: Width = 0.0
    max_coef: Annotated[float, Ge(0)] = field(default=math.inf, metadata={"unbounded": True})
    off_until_measured: bool = False

    def __post_init__(self) -> None:
        if self.min_coef > self.max_coef:
            raise ConfigError(
                f"control.min_coef is {self.min_coef} and control.max_coef {self.max_coef}; the first is not above"
            )
        self._reset()
        self._memory["below"] = 0.0 if self.off_until_measured else 1.0
        if self._is_bounded:
            self._memory.update(low=self.min_coef, high=self.max_coef)

    @property
    def _is_bounded(self) -> bool:
        return self.min_coef > 0 or self.max_coef < math.inf

    def level(self, start: float) -> float:
        if not self._is_bounded:
            return self._level(start)
        return min(max(start + self._memory["total"], self._memory["low"]), self._memory["high"])

    def coefficient(self, start: float) -> float:
        return self.level(start) if self._memory["below"] else 0.0

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        if "entropy" in figures:
            below = figures["entropy"] < self.target
            by = self.step_size if below else -self.step_size
            self._move(by)
            if self._is_bounded:  # steps of clamp(c + by, least, most) are clamp(c + total, low, high) together
                for end in ("low", "high"):
                    self._memory[end] = min(max(self._memory[end] + by, self.min_coef), self.max_coef)
            self._memory["below"] = float(below)
        return {"entropy_below_target": self._memory["below"]}


@part("dual_budget", stage="control")
@dataclass(frozen=True)
class DualBudget(_Walk):
    """Dual ascent on a KL budget: coef <- max(0, coef + rate (KL - budget)), the multiplier of KL <= budget.

    budget  nats a token, of the step's mean KL estimate
    rate    coefficient per nat and step

    At a coefficient of 0 the KL is measured on the policy at the start of the step, so that it can rise again.
    """

    budget: Width = 0.05
    rate: Positive = 0.1

    follows = "kl"

    def __post_init__(self) -> None:
        self._reset()

    def coefficient(self, start: float) -> float:
        return self._level(start)

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        if "kl" in figures:
            self._move(self.rate * (figures["kl"] - self.budget))
            return {"kl_over_budget": figures["kl"] - self.budget}
        return {}
