"""Gates that pull the ratio back to 1 by a quadratic penalty instead of cutting gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gxpo.errors import CheckpointError, ConfigError
from gxpo.objectives.gate import Entries, Gate


def quadratic(ratio: Tensor, credit: Tensor, coefficient: Tensor) -> Tensor:
    """[n] -A rho + c (rho - 1)^2; its slope in log rho is -rho (A - 2 c (rho - 1)), 0 at rho = 1 + A / (2 c).

    >>> one = torch.ones(3, dtype=torch.float64)
    >>> quadratic(torch.tensor([1.0, 1.2, 2.0], dtype=torch.float64), one, 2.5 * one).tolist()
    [-1.0, -1.1, 0.5]
    """
    off = ratio - 1
    pull = torch.where(coefficient == 0, torch.zeros_like(off), coefficient * off)
    return off * (pull - credit) - credit  # the same, without infinity less infinity where the ratio has overflowed


class _Quadratic(Gate):
    """`quadratic` with a coefficient of the entry's own."""

    @abstractmethod
    def coefficient(self, credit: Tensor) -> Tensor:
        raise NotImplementedError

    def loss(self, x: Entries) -> Tensor:
        return quadratic(x.ratio, x.credit, self.coefficient(x.credit))

    def clipped(self, x: Entries) -> Tensor:
        """Entries that have moved where their credit wants them: their gradient is smaller than -A rho's, or turned."""
        return (x.credit * (x.ratio - 1) > 0) & (self.coefficient(x.credit) > 0)


@dataclass(frozen=True)
class QuadraticPenalty(_Quadratic):
    """-A rho + |A| (rho - 1)^2 / (2 width): least at rho = 1 + width for A > 0, at 1 - width for A < 0.

    width  where the optimum lies, relative to 1

    Beyond the optimum the gradient turns round, where PPO's is 0. The value grows with rho^2. Source: SPO,
    arXiv 2401.16025, and its code.
    """

    width: float = 0.2

    def __post_init__(self) -> None:
        if not self.width > 0:
            raise ConfigError(f"objective.width is {self.width}; it is a distance from ratio 1, above 0")

    def coefficient(self, credit: Tensor) -> Tensor:
        return credit.abs() / (2 * self.width)


@dataclass(frozen=True)
class RatioVariance(_Quadratic):
    """-A rho + c (rho - 1)^2, the same c for every entry with credit; c is the multiplier of mean (rho - 1)^2 <= limit.

    c <- max(0, c + penalty_rate (mean (rho - 1)^2 - variance_max)), once per trainer step, from its figures.

    penalty       where c starts;   penalty_rate  0: it stays there
    variance_max  the limit; (rho - 1)^2 / 2 is the KL divergence to second order

    Metrics: `ratio_variance`, mean (rho - 1)^2 over the active entries, and `ratio_penalty`, what c is after the step.
    Source: R2VPO, arXiv 2601.03320.
    """

    penalty: float = 0.04
    variance_max: float = 0.04
    penalty_rate: float = 0.1
    _memory: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.penalty >= 0 and self.variance_max >= 0 and self.penalty_rate >= 0):
            raise ConfigError(
                f"objective: penalty ({self.penalty}), variance_max ({self.variance_max}) and penalty_rate "
                f"({self.penalty_rate}) are 0 or more"
            )
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
            raise CheckpointError(f"the gate's part of the checkpoint has {sorted(state)}: is it of ratio_variance?")
        self._memory.update(penalty=float(state["penalty"]))
