"""KL to the reference as part of the reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gxpo.objectives.kl import kl_estimate, penalised_outcome

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@dataclass(frozen=True)
class KLReward:
    """outcome - coef * sum over the trajectory's trainable tokens of the estimate, before any group statistic.

    The estimate is of the policy at the start of the step (signal `proximal_logprob`), detached. k1 gives the exact
    gradient of the KL; k2 and k3 do not.
    """

    coef: float
    estimator: str = "k3"

    needs = ("reference_logprob",)

    def penalise(self, forest: Forest, signals: Signals) -> Forest:
        """The forest with the penalised outcomes."""
        kl = kl_estimate(signals["proximal_logprob"], signals["reference_logprob"], self.estimator)
        outcome = penalised_outcome(forest.outcome, kl, forest.path_trajectory, self.coef, forest.path_trainable)
        return forest.replace(outcome=outcome)
