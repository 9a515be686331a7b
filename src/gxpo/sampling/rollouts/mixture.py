"""Attempts shared between the policy and a safe baseline, so that the mixture stays above a floor (StepMix)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from annotated_types import Interval

from gxpo.base.errors import CheckpointError
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw
from gxpo.sampling.rollouts.base import Count, Rollout
from gxpo.sampling.rollouts.baseline import BASELINE, REFERENCE
from gxpo.sampling.rollouts.build import random_for
from gxpo.sampling.rollouts.episodes import Play

Share = Annotated[float, Interval(gt=0, lt=1)]


def safe_share(baseline: float, lower: float, floor: float) -> float:
    """Largest share of the policy by which a mixture's mean stays at `floor` x baseline, if the policy's is `lower`.

    >>> round(safe_share(0.6, 0.4, 0.9), 9), safe_share(0.6, 0.6, 0.9)
    (0.3, 1.0)
    """
    if lower >= floor * baseline:
        return 1.0
    return (baseline - floor * baseline) / (baseline - lower)


def lower_bound(mean: float, n: float, delta: float) -> float:
    """Lower confidence bound of a mean of n outcomes in [0, 1] (Hoeffding), at least 0; 0 without outcomes.

    >>> round(lower_bound(0.6, 50, 0.135335), 6)
    0.458579
    """
    return max(0.0, mean - math.sqrt(math.log(1 / delta) / (2 * n))) if n > 0 else 0.0


@part("mixture", stage="rollout")
@dataclass(frozen=True)
class Mixture(Rollout):
    """`group_size` attempts at each task, a share by the policy, the others by the model that the run began with.

    floor  share of the baseline's mean outcome that the mixture's is to keep
    delta  of the policy's lower confidence bound: the lower, the more careful;   discount  of earlier steps' outcomes

    The share is `safe_share` of the means of the steps before, at least 1 - floor; each group's number is drawn, so
    that it is right on average. Attempts of the baseline (origin "baseline") are scored, neither compared nor trained.
    Outcomes are read in [0, 1]. The baseline is the model without adapters: `learner.lora_rank`. Held-out tasks are
    attempted by the policy alone.

    Source: StepMix, arXiv 2306.06265, for tables; there the bound is of an optimistic model.
    """

    group_size: Count = 8
    floor: Share = 0.9
    delta: Share = 0.05
    discount: Annotated[float, Interval(gt=0, le=1)] = 0.9
    sums: dict[str, list[float]] = field(init=False, repr=False, compare=False, default_factory=dict)

    policies: ClassVar[dict[str, str]] = {"main": "trained", REFERENCE: "frozen"}

    @property
    def share(self) -> float:
        """Share of the policy in the next step; 1 - floor before anything is known."""
        (own_sum, own_n), (base_sum, base_n) = (
            self.sums.get(policy_name, [0.0, 0.0]) for policy_name in ("policy", BASELINE)
        )
        if not base_n:
            return 1.0 - self.floor
        own_bound = lower_bound(own_sum / own_n if own_n else 0.0, own_n, self.delta)
        return safe_share(base_sum / base_n, own_bound, self.floor)

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        out = []
        for draw in draws:
            exact_count = self.share * self.group_size
            n_own = math.floor(exact_count) + (
                random_for(play.session, draw.name, "mixture").random() < exact_count % 1
            )
            if n_own:
                out.append(draw.attempts(n_own))
            if n_own < self.group_size:
                n_base = self.group_size - n_own
                out.append(
                    draw.attempts(
                        n_base, first=n_own, label=BASELINE, origin=BASELINE, policy=REFERENCE, is_measurement=True
                    )
                )
        return out

    # ------------------------------------------------------------ memory
    def observe(self, forest: Forest) -> None:
        """Add the outcomes of both; those of earlier steps count `discount`."""
        for policy_name in ("policy", BASELINE):
            rows = zip(forest.origin, forest.outcome.tolist(), strict=True)
            outcomes = [min(max(x, 0.0), 1.0) for origin, x in rows if origin == policy_name and math.isfinite(x)]
            total, n = self.sums.get(policy_name, [0.0, 0.0])
            self.sums[policy_name] = [self.discount * total + math.fsum(outcomes), self.discount * n + len(outcomes)]

    def state_dict(self) -> dict[str, Any]:
        return {"sums": {policy_name: list(row) for policy_name, row in self.sums.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"sums"}:
            raise CheckpointError(f"the checkpoint's rollout part holds {sorted(state)}, not 'sums'")
        self.sums.clear()
        self.sums.update({policy_name: [float(x) for x in row] for policy_name, row in state["sums"].items()})
