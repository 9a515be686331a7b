"""Step advantages among steps that began in the same environment state (GiGPO's anchor states)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.credit.recursion import next_in
from gxpo.algorithms.credit.relative import Relative, Rows, Unit
from gxpo.algorithms.credit.state_keys import StateKeyed, combined, history_ids
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@part("state_relative", stage="credit")
@dataclass(frozen=True)
class StateRelative(StateKeyed, Relative):
    """Anchor-state advantage: `Relative` among the group's steps from the same state; GiGPO is `Relative()` plus this.

    history  states before it that must be equal too for two steps to be in one group; steps with fewer before them are
             compared with those that began their trajectory in the same way

    Every (trajectory, turn) counts once, the same state met twice in a trajectory twice. Exactly 0 for a state met
    once, an unknown state, and steps of one state with equal returns. Trajectories of equal outcome may differ in their
    steps: from one state the shorter way has the larger discounted return.

    GraphGPO is `Relative()` plus this with value graph_return, discount 0.1.

    Source: GiGPO, arXiv 2505.10978, eq. 5 and 7; reference code (verl-agent). For the sum of both levels, with
    `credit.add.state.*` for this one's options,
      verl-agent  unit step, singleton raw, scale none (its scripts for ALFWorld: std)
      Trinity     singleton raw, scale none, discount 1; it compares equal states of different tasks too, which this
                  does not
      ROLL        unit step, with its `mean_std`
      RAGEN       singleton raw, for the states too
    """

    value: str = "return"
    unit: Unit = "step"
    discount: Annotated[float, Interval(ge=0, le=1)] = 0.95
    history: Annotated[int, Interval(ge=0)] = 0

    def learns_from_equal(self) -> bool:
        """As for the outcome: the published recipes drop groups of equal outcomes."""
        return self.center == "none" and self.scale == "none"

    def peers(self, forest: Forest, rows: Rows) -> Tensor:
        state = self.states(forest)
        if self.history:
            state = history_ids(state, next_in(forest.step_trajectory, state >= 0), self.history, whole=False)[-1]
        others = tuple(level for level in self.among if level != "group")
        state = rows.take(state, "S")
        return combined(state, super().peers(forest, rows)) if others else state
