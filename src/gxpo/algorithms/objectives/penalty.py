"""Base class of KL and entropy terms: a coefficient times the aggregate of a quantity over the trainable tokens."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, TermPart, coefficients
from gxpo.algorithms.objectives.control import Control, Width

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals


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
    def now(self) -> float:
        """Coefficient of this step."""
        return self.coef if self.control is None else self.control.coefficient(self.coef)

    @property
    def ever(self) -> bool:
        """Whether the coefficient is, or may become, other than 0."""
        return self.coef != 0 or (self.control is not None and self.control.from_zero)

    @property
    def watches(self) -> bool:
        """Whether its controller has to know the quantity while the coefficient is 0."""
        return self.control is not None and self.control.follows == self.name

    @abstractmethod
    def quantity(self, forest: Forest, policy: PolicyTokens, entries: Tensor) -> Tensor:
        """Value of the quantity at these tokens, in the dtype of `policy.logprob`; never called without tokens."""
        raise NotImplementedError

    def scale(self, forest: Forest) -> Tensor:
        """Coefficients of the aggregation, [P]."""
        return coefficients(forest.path_trajectory, forest.path_trainable, self.aggregate, self.horizon)

    def measured(self, forest: Forest, signals: Signals) -> float | None:
        """Mean of the quantity on the policy at the start of the step; None where the signals lack it."""
        return None

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        scale = self.sign * self.now * self.scale(forest) * forest.to_path(forest.weight, "R")
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        value = self.quantity(forest, policy, entries) if entries.numel() else policy.logprob[entries]
        figures = {} if self.control is None else {f"{self.name}_coef": self.now}
        if entries.numel():
            figures[self.name] = float(value.detach().mean())
        elif self.watches and (start := self.measured(forest, signals)) is not None:
            figures[self.name] = start
        return (scale[entries].to(value) * value).sum(), figures

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of trajectories of non-zero `forest.weight`."""
        if self.now == 0:
            return torch.zeros_like(forest.path_trainable)
        return forest.path_trainable & (forest.to_path(forest.weight, "R") != 0)
