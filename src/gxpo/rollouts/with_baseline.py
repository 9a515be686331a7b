"""Rollouts that are only measured stand beside every group: greedy ones, or those of the model the run starts from."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, TypeVar

import torch

from gxpo.errors import CheckpointError, ConfigError, one_of
from gxpo.forest import Forest
from gxpo.protocols import Request, Session, StreamKey, Task
from gxpo.rollouts.again import need_single_turn
from gxpo.rollouts.build import forest_of, name_draws, requests
from gxpo.rollouts.reference import unrestricted
from gxpo.rollouts.replay import side_by_side

BASELINE = "baseline"
REFERENCE = "reference"
_T = TypeVar("_T")


@dataclass(frozen=True)
class WithBaseline:
    """`group_size` samples of each task, and `baselines` rollouts beside them that nothing is learned from.

    baselines    a task; 0: as many as samples
    of           who makes those: "current", the policy itself, or "reference", the model that the run starts from
    temperature  at which they are drawn; None: the run's; 0: the most likely token every time, so one is enough
    once         a task's are drawn when it is met for the first time; later its rollouts' info["baseline"] holds the
                 mean of the outcomes that were seen then

    A baseline row is in its task's group with origin "baseline": scored and shaped like any other, but not compared,
    not trained, and in no denominator. Its streams are (seed, step, draw, group_size + j). Who measures by them:
    the signal `rollout_baseline`.

    The reference is the model without adapters, which takes `learner.lora_rank`: with all parameters in training there
    is no second model to sample from.
    """

    group_size: int = 8
    baselines: int = 1
    of: Literal["current", "reference"] = "current"
    temperature: float | None = None
    once: bool = False
    memory: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    provides = ("states",)
    single_turn = True

    def __post_init__(self) -> None:
        one_of("rollout.of", self.of, ("current", "reference"))
        if self.group_size < 1 or self.baselines < 0:
            raise ConfigError(
                f"rollout.group_size must be at least 1 and rollout.baselines at least 0, not {self.group_size} and "
                f"{self.baselines}"
            )
        if self.temperature is not None and self.temperature < 0:
            raise ConfigError(f"rollout.temperature is {self.temperature}; it is null, or at least 0")
        if self.temperature == 0 and self.baselines != 1:
            raise ConfigError(f"greedy rollouts are all the same: set rollout.baselines=1, not {self.baselines}")

    @property
    def policies(self) -> dict[str, str] | None:
        """Policy name -> "trained" or "frozen", where there is more than one."""
        return {"main": "trained", REFERENCE: "frozen"} if self.of == "reference" else None

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        need_single_turn(session, "with_baseline", "measures a baseline")
        draws = name_draws(tasks, Counter())
        prompts = [session.encode(task) for task in tasks]
        groups = [f"s{session.step}/{draw}" for draw in draws]
        completions = session.sample(requests(prompts, draws, self.group_size, session))
        forest = forest_of(tasks, groups, prompts, completions, session.sampling)
        known = [self.memory.get(task) if self.once else None for task in forest.task]
        forest = forest.replace(info=[{} if v is None else {BASELINE: v} for v in known])
        new = [i for i, task in enumerate(tasks) if not (self.once and task.id in self.memory)]
        if not new:
            return forest
        beside = self._measured(_at(tasks, new), _at(groups, new), _at(prompts, new), _at(draws, new), session)
        return side_by_side(Forest.concat([forest, beside]))

    def _measured(
        self,
        tasks: Sequence[Task],
        groups: Sequence[str],
        prompts: Sequence[tuple[int, ...]],
        draws: Sequence[str],
        session: Session,
    ) -> Forest:
        """The baseline rows of these tasks."""
        how = session.sampling
        if self.temperature is not None:
            how = dataclasses.replace(how, temperature=self.temperature)
        how = unrestricted(how) if how.temperature == 0 else how
        each = range(self.baselines or self.group_size)
        asked = [
            Request(
                prompt,
                tuple(StreamKey(session.seed, session.step, draw, self.group_size + j) for j in each),
                policy=REFERENCE if self.of == "reference" else "main",
            )
            for prompt, draw in zip(prompts, draws, strict=True)
        ]
        # a greedy row has no distribution that a learner could read it by; that of the run's samples stands in
        read = how if how.temperature > 0 else unrestricted(session.sampling)
        beside = forest_of(tasks, groups, prompts, session.sample(asked, how), read)
        n = beside.n_trajectories
        return beside.replace(
            id=[f"{group}/baseline/{j}" for group in groups for j in each],
            origin=[BASELINE] * n,
            policy_names=(REFERENCE,) if self.of == "reference" else beside.policy_names,
            trainable=torch.zeros_like(beside.trainable),
            compared=torch.zeros_like(beside.compared),
            weight=torch.zeros_like(beside.weight),
        )

    # ------------------------------------------------------------ memory
    def observe(self, forest: Forest) -> None:
        """Remembers the mean outcome of each task's baseline rows, as they were shaped."""
        if not self.once:
            return
        found: dict[str, list[float]] = {}
        for task, origin, outcome in zip(forest.task, forest.origin, forest.outcome.tolist(), strict=True):
            if origin == BASELINE and math.isfinite(outcome):
                found.setdefault(task, []).append(outcome)
        self.memory.update({task: fmean(outcomes) for task, outcomes in found.items()})

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": dict(self.memory)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"baselines"}:
            raise CheckpointError(f"the checkpoint's rollout part holds {sorted(state)}, not 'baselines'")
        self.memory.clear()
        self.memory.update({task: float(value) for task, value in state["baselines"].items()})


def _at(column: Sequence[_T], places: Sequence[int]) -> list[_T]:
    return [column[i] for i in places]
