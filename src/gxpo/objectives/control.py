"""Controls: a coefficient that follows what the steps measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gxpo.errors import CheckpointError, ConfigError


class Control:
    """Base of controls: frozen dataclasses that give a term's coefficient, constant within a step.

    Terms that hold one call `coefficient`; the trainer calls `adjust` once per step, after the update. What a control
    remembers goes through `state_dict` and `load_state_dict`, so that a resumed run goes on exactly.
    """

    def coefficient(self, start: float) -> float:
        """The coefficient now, of a term that was configured with `start`."""
        raise NotImplementedError

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Takes the step's figures (names of metrics.jsonl: "kl", "entropy", "success_rate", "step"...; a figure that
        the step does not have is absent); gives what it now says, by metric name."""
        raise NotImplementedError


@dataclass(frozen=True)
class AdaptiveKL(Control):
    """coef <- coef (1 + clip(KL / target - 1, -bound, bound) rollouts / horizon), from the step's mean KL estimate.

    target   nats a token
    bound    largest relative error that is acted on
    horizon  in rollouts: the larger, the slower

    Source: Ziegler et al., arXiv 1909.08593, section 2.2 (target 6 nats a sequence, bound 0.2, horizon 10,000).
    """

    target: float = 0.06
    bound: float = 0.2
    horizon: float = 10_000.0
    _memory: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=lambda: {"factor": 1.0})

    def __post_init__(self) -> None:
        if not (self.target > 0 and self.bound > 0 and self.horizon > 0):
            raise ConfigError(
                f"control: target ({self.target}), bound ({self.bound}) and horizon ({self.horizon}) are above 0"
            )

    def coefficient(self, start: float) -> float:
        return start * self._memory["factor"]

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        if "kl" in figures:
            error = min(max(figures["kl"] / self.target - 1.0, -self.bound), self.bound)
            self._memory["factor"] *= 1.0 + error * figures["trajectories"] / self.horizon
        return {"kl_factor": self._memory["factor"]}

    def state_dict(self) -> dict[str, Any]:
        return dict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != set(self._memory):
            raise CheckpointError(f"the control's part of the checkpoint has {sorted(state)}: is it of adaptive_kl?")
        self._memory.update(factor=float(state["factor"]))
