"""Baseline rollouts (greedy, or from the reference model) in each group: scored, never trained on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any, Literal

from annotated_types import Ge

from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw
from gxpo.sampling.rollouts.base import Count, Rollout
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.reference import lift_restrictions

BASELINE = "baseline"
REFERENCE = "reference"


@part("baseline_rollouts", stage="rollout")
@dataclass(frozen=True)
class BaselineRollouts(Rollout):
    """`group_size` samples of each task, and `baselines` rollouts beside them that nothing is learned from.

    baselines    a task; 0: as many as samples
    policy       who makes those: "current", the policy itself, or "reference", the model that the run starts from
    temperature  at which they are drawn; None: the run's; 0: the most likely token every time, so one is enough
    cache        a task's are drawn when it is met for the first time; later its rollouts' info["baseline"] holds the
                 mean of the outcomes that were seen then

    A baseline row is in its task's group with origin "baseline": scored and shaped like any other, but not compared,
    not trained, and in no denominator. Its streams are (seed, step, draw, group_size + j). Who measures by them:
    the signal `rollout_baseline`.

    The reference is the model without adapters, which takes `learner.lora_rank`: with all parameters in training there
    is no second model to sample from.
    """

    group_size: Count = 8
    baselines: Annotated[int, Ge(0)] = 1
    policy: Literal["current", "reference"] = "current"
    temperature: Annotated[float, Ge(0)] | None = None
    cache: bool = False
    team: str = ""
    memory: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.temperature == 0 and self.baselines != 1:
            raise ConfigError(f"greedy rollouts are all the same: set rollout.baselines=1, not {self.baselines}")
        if self.team and self.policy == "reference":
            raise ConfigError(
                "rollout.team: a team's attempts are all made by its own policy: set rollout.policy=current"
            )

    @property
    def across_groups(self) -> bool:
        """True with `cache`: a task's baseline is then that of an earlier step."""
        return self.cache

    @property
    def policies(self) -> dict[str, str] | None:
        """Policy name -> "trained" or "frozen"; None if there is one policy only."""
        return {"main": "trained", REFERENCE: "frozen"} if self.policy == "reference" else None

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        baseline_sampling = play.session.sampling
        if self.temperature is not None:
            baseline_sampling = dataclasses.replace(baseline_sampling, temperature=self.temperature)
        baseline_sampling = (
            lift_restrictions(baseline_sampling) if baseline_sampling.temperature == 0 else baseline_sampling
        )
        # a greedy row has no distribution that a learner could read it by: its record states the run's instead
        recorded_sampling = (
            baseline_sampling if baseline_sampling.temperature > 0 else lift_restrictions(play.session.sampling)
        )
        policy = REFERENCE if self.policy == "reference" else "main"
        out = []
        # with `cache` a task that was met before has its stored mean, and draws no further baselines
        for draw in draws:
            known_mean = self.memory.get(draw.task.id) if self.cache else None
            out.append(draw.attempts(self.group_size, info={} if known_mean is None else {BASELINE: known_mean}))
            if known_mean is None:
                out.append(
                    draw.attempts(
                        self.baselines or self.group_size, first=self.group_size, label=BASELINE, origin=BASELINE,
                        policy=policy, sampling=baseline_sampling, read=recorded_sampling, is_measurement=True,
                    )
                )  # fmt: skip
        return out

    # ------------------------------------------------------------ memory
    def observe(self, forest: Forest) -> None:
        """Store the mean outcome of each task's baseline rows, shaping included."""
        if not self.cache:
            return
        outcomes_by_task: dict[str, list[float]] = {}
        for task, origin, outcome in zip(forest.task, forest.origin, forest.outcome.tolist(), strict=True):
            if origin == BASELINE and math.isfinite(outcome):
                outcomes_by_task.setdefault(task, []).append(outcome)
        self.memory.update({task: fmean(outcomes) for task, outcomes in outcomes_by_task.items()})

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": dict(self.memory)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"baselines"}:
            raise CheckpointError(f"the checkpoint's rollout part holds {sorted(state)}, not 'baselines'")
        self.memory.clear()
        self.memory.update({task: float(value) for task, value in state["baselines"].items()})
