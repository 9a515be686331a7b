"""KL penalty in the reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gxpo.algorithms.objectives.penalty import ESTIMATORS, Estimator, kl_estimate, penalised_outcome
from gxpo.base.errors import MissingSignal, one_of

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@dataclass(frozen=True)
class KLReward:
    """KL penalty in the reward: `penalised_outcome` with the policy at the start of the step, before group statistics.

    The outcome alone pays; step rewards are left as they are. REINFORCE++ and RLOO have k1 here;
    k3 and k3+ are the same, since nothing is differentiated.
    """

    coef: float
    estimator: Estimator = "k3"

    needs = ("reference_logprob",)

    def __post_init__(self) -> None:
        one_of("objective.kl.estimator", self.estimator, ESTIMATORS)

    def penalise(self, forest: Forest, signals: Signals) -> Forest:
        """Forest with the penalty subtracted from its outcomes. Raises MissingSignal where a log-prob is unknown."""
        estimate = kl_estimate(signals["proximal_logprob"], signals["reference_logprob"], self.estimator)
        trainable = forest.path_trainable
        if missing := int((estimate.isnan() & trainable).sum()):
            raise MissingSignal(
                f"objective.kl in the reward: proximal_logprob or reference_logprob is nan for {missing} of "
                f"{int(trainable.sum())} trainable tokens"
            )
        outcome = penalised_outcome(forest.outcome, estimate, forest.path_trajectory, self.coef, where=trainable)
        return forest.replace(outcome=outcome)
