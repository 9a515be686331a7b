"""A group of an asynchronous run, and the engine, environments and rewards that its own session gives its rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Budget, Completion, EnvFailure, Envs, Reply, Request, Sampling, Task, TimeStep
from gxpo.training.asynchronous.ledger import Cost
from gxpo.training.asynchronous.routines import Routine

ENGINE, ENVS, REWARDS = "engine", "envs", "rewards"  # the services


class OverAge(BaseException):
    """Ends a rollout whose group is too old to be trained; a BaseException, so that no part catches it as an error."""


@dataclass(eq=False)
class Group:
    """All draws of one task in a step: mostly one; a task drawn several times makes that many groups of rollouts.

    place    number in the order of drawing, as in the ledger
    tasks    the task, once for each draw
    version  version of the weights that sample it; with `async.partial` that of its oldest token
    cost     work of the services for it so far
    """

    place: int
    step: int
    tasks: list[Task]
    version: int
    over_age: bool = False
    cost: Cost = field(default_factory=Cost)
    budget: Budget = field(default_factory=Budget)
    error: BaseException | None = None

    @property
    def draws(self) -> int:
        return len(self.tasks)

    def total_cost(self) -> Cost:
        """Return the tokens, rollouts and time that the group has used so far."""
        total = Cost(self.budget.generated_tokens, self.budget.rollouts, self.budget.discarded)
        total.add(self.cost)
        return total

    def __str__(self) -> str:
        return f"s{self.step}/{self.tasks[0].id}"


class GroupEngine:
    """Engine of one group's session, which prefixes names of caches by the group's place."""

    def __init__(self, routine: Routine, group: Group) -> None:
        self._routine, self._group = routine, group
        self._cache_names: set[str] = set()

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        if self._group.over_age:
            raise OverAge
        renamed_requests = [replace(r, keep=tuple(self._cache_name(name) for name in r.keep)) for r in requests]
        self._cache_names.update(name for r in renamed_requests for name in r.keep)
        return self._routine.ask(ENGINE, "sample", renamed_requests, sampling)

    def release(self, names: Sequence[str] | None = None) -> None:
        candidates = list(self._cache_names) if names is None else [self._cache_name(name) for name in names]
        if cache_names := [name for name in candidates if name in self._cache_names]:
            self._cache_names.difference_update(cache_names)
            self._routine.ask(ENGINE, "release", cache_names)

    def _cache_name(self, name: str) -> str:
        return f"{self._group.place}:{name}"


class GroupEnvs:
    """Environments of one group's session, which prefix names, so that equal names of two groups are two episodes."""

    def __init__(self, routine: Routine, group: Group, envs: Envs) -> None:
        self._routine, self._prefix = routine, f"{group.place}:"
        self.name, self.instructions, self.max_turns = envs.name, envs.instructions, envs.max_turns
        self.tools, self.provides = envs.tools, envs.provides
        self.of_tasks = getattr(envs, "of_tasks", False)

    def reset(self, seeds: Mapping[str, int]) -> dict[str, TimeStep | EnvFailure]:
        return self._call("reset", seeds)

    def step(self, actions: Mapping[str, Reply]) -> dict[str, TimeStep | EnvFailure]:
        return self._call("step", actions)

    def restore(self, snapshots: Mapping[str, str]) -> dict[str, EnvFailure | None]:
        return self._call("restore", snapshots)

    def snapshot(self, names: Sequence[str]) -> dict[str, str | EnvFailure]:
        return self._call("snapshot", dict.fromkeys(names))

    def expert(self, names: Sequence[str]) -> dict[str, str | EnvFailure | None]:
        return self._call("expert", dict.fromkeys(names))

    def legal(self, names: Sequence[str]) -> dict[str, list[str] | EnvFailure]:
        return self._call("legal", dict.fromkeys(names))

    def finish(self, names: Sequence[str]) -> None:
        if names:
            self._routine.ask(ENVS, "finish", {self._prefix + name: None for name in names})

    def _call(self, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._routine.ask(ENVS, operation, {self._prefix + name: x for name, x in arguments.items()})
        return {name: answer[self._prefix + name] for name in arguments}


class GroupRewards:
    """Rewards of one group's session, scored by the service in a batch with other groups."""

    def __init__(self, routine: Routine, rewards: Any) -> None:
        self._routine, self.weighted_names = routine, rewards.weighted_names

    def score(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Forest:
        return self._routine.ask(REWARDS, "score", forest, list(texts), list(tasks))
