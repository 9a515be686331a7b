"""Advantages under a constraint, by dual ascent on its multiplier (Lagrangian methods)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt
from torch import Tensor

from gxpo.algorithms.credit.relative import Statistic
from gxpo.base.errors import CheckpointError, ConfigError, did_you_mean
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


def ascended(multiplier: float, cost: float, at_most: float, rate: float) -> float:
    """Multiplier after a step of dual ascent: max(0, multiplier + rate (cost - at_most)).

    >>> round(ascended(0.5, 0.3, 0.1, 0.1), 9), ascended(0.0, 0.0, 0.1, 0.1)
    (0.52, 0.0)
    """
    return max(0.0, multiplier + rate * (cost - at_most))


@part("dual", stage="credit")
@dataclass(frozen=True, kw_only=True)
class Dual(Statistic):
    """Constrained advantage: A = (A_outcome - m A_cost) / (1 + m), m the multiplier of mean cost <= `cost_limit`.

    cost      component of the rollouts that is bounded (its weight in the outcome is its own affair: 0, as a rule)
    cost_limit  bound of its mean over a step's rollouts
    rate      of the dual ascent after each step: m <- max(0, m + rate (mean cost - cost_limit));   start  m before it

    Both advantages are `group_relative` with the part's options; a trajectory of unknown cost is not compared in
    A_cost. Metric "dual_multiplier". Source: primal-dual policy gradients; Ying et al., arXiv 2305.17568.
    """

    cost: str = ""
    cost_limit: float | None = None
    rate: Annotated[float, Gt(0)] = 0.1
    start: Annotated[float, Ge(0)] = 0.0
    learns_from_equal_groups: bool = field(default=True, init=False, repr=False)
    _memory: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._memory["multiplier"] = self.start

    @property
    def multiplier(self) -> float:
        return self._memory["multiplier"]

    def check_options(self) -> None:
        """Raise ConfigError for a constraint without a bound; called before the run."""
        if not self.cost or self.cost_limit is None:
            missing = "credit.cost_limit" if self.cost else "credit.cost"
            raise ConfigError(f"credit=dual has no bound: set {missing}, of a component's mean over the rollouts")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        self.check_options()
        if self.cost not in forest.component_names:
            names = ", ".join(forest.component_names) or "none"
            hint = did_you_mean(self.cost, forest.component_names)
            raise ConfigError(
                f"credit.cost={self.cost}: the rollouts have no component of that name{hint}; there is {names}"
            )
        cost_R = forest.components[:, forest.component_names.index(self.cost)]
        ids_R, is_known_R = forest.ids("group", axis="R"), cost_R.isfinite()
        cost_advantage_R = self.apply(cost_R.nan_to_num(0.0), ids_R, forest.compared & is_known_R) * is_known_R
        total_R = (self.of_outcome(forest) - self.multiplier * cost_advantage_R) / (1 + self.multiplier)
        return forest.to_path(total_R, "R")

    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Ascend by the step's mean cost; a step in which nothing has a cost moves nothing."""
        mean_cost = figures.get(f"reward_{self.cost}")
        if mean_cost is not None and self.cost_limit is not None:
            self._memory["multiplier"] = ascended(self.multiplier, mean_cost, self.cost_limit, self.rate)
        return {"dual_multiplier": self.multiplier}

    def state_dict(self) -> dict[str, Any]:
        return dict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"multiplier"}:
            raise CheckpointError(f"the checkpoint's credit part holds {sorted(state)}, not 'multiplier'")
        self._memory["multiplier"] = float(state["multiplier"])
