"""One task of an asynchronous run: what it is grown under, and the session in which its rollout runs alone."""

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
    """Raised in a rollout whose group could not be trained any more; no part may catch it as an error of its own."""


@dataclass(eq=False)
class Group:
    """The draws of one task in a step: mostly one; a task that was drawn several times makes that many groups.

    place    its number in the order of drawing; the ledger's
    tasks    the task, once for each draw
    version  of the weights that it is sampled under; with `async.partial` of its oldest token
    cost     what services have done for it so far
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

    def spent(self) -> Cost:
        """What it took so far."""
        total = Cost(self.budget.generated_tokens, self.budget.rollouts, self.budget.discarded)
        total.add(self.cost)
        return total

    def __str__(self) -> str:
        return f"s{self.step}/{self.tasks[0].id}"


class GroupEngine:
    """The engine of one group's session: its caches have names of their own."""

    def __init__(self, routine: Routine, group: Group) -> None:
        self._routine, self._group = routine, group
        self._kept: set[str] = set()

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        if self._group.over_age:
            raise OverAge
        own = [replace(r, keep=tuple(self._name(name) for name in r.keep)) for r in requests]
        self._kept.update(name for r in own for name in r.keep)
        return self._routine.ask(ENGINE, "sample", own, sampling)

    def release(self, names: Sequence[str] | None = None) -> None:
        chosen = list(self._kept) if names is None else [self._name(name) for name in names]
        if held := [name for name in chosen if name in self._kept]:
            self._kept.difference_update(held)
            self._routine.ask(ENGINE, "release", held)

    def _name(self, name: str) -> str:
        return f"{self._group.place}:{name}"


class GroupEnvs:
    """The environments of one group's session: equal names of two groups are two episodes."""

    def __init__(self, routine: Routine, group: Group, envs: Envs) -> None:
        self._routine, self._prefix = routine, f"{group.place}:"
        self.name, self.instructions, self.max_turns = envs.name, envs.instructions, envs.max_turns
        self.tools, self.provides = envs.tools, envs.provides

    def reset(self, seeds: Mapping[str, int]) -> dict[str, TimeStep | EnvFailure]:
        return self._asked("reset", seeds)

    def step(self, actions: Mapping[str, Reply]) -> dict[str, TimeStep | EnvFailure]:
        return self._asked("step", actions)

    def restore(self, snapshots: Mapping[str, str]) -> dict[str, EnvFailure | None]:
        return self._asked("restore", snapshots)

    def snapshot(self, names: Sequence[str]) -> dict[str, str | EnvFailure]:
        return self._asked("snapshot", dict.fromkeys(names))

    def expert(self, names: Sequence[str]) -> dict[str, str | EnvFailure | None]:
        return self._asked("expert", dict.fromkeys(names))

    def legal(self, names: Sequence[str]) -> dict[str, list[str] | EnvFailure]:
        return self._asked("legal", dict.fromkeys(names))

    def finish(self, names: Sequence[str]) -> None:
        if names:
            self._routine.ask(ENVS, "finish", {self._prefix + name: None for name in names})

    def _asked(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._routine.ask(ENVS, what, {self._prefix + name: x for name, x in given.items()})
        return {name: answer[self._prefix + name] for name in given}


class GroupRewards:
    """The rewards of one group's session."""

    def __init__(self, routine: Routine, rewards: Any) -> None:
        self._routine, self.weighed = routine, rewards.weighed

    def score(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Forest:
        return self._routine.ask(REWARDS, "score", forest, list(texts), list(tasks))
