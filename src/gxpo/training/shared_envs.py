"""Environments under several processes: one of them acts, all see what comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gxpo.base import runtime
from gxpo.environments.envs.checked import checked, from_fields
from gxpo.parts.protocols import EnvFailure, Envs, Reply, TimeStep

Steps = dict[str, "TimeStep | EnvFailure"]


class SharedEnvs:
    """`envs` of the first process, for all processes that play the same episodes at the same time."""

    def __init__(self, envs: Envs) -> None:
        self.envs = envs
        self.name, self.instructions, self.max_turns = envs.name, envs.instructions, envs.max_turns
        self.tools, self.provides = envs.tools, envs.provides

    def reset(self, seeds: Mapping[str, int]) -> Steps:
        return self._shared(lambda: self.envs.reset(seeds))

    def step(self, actions: Mapping[str, Reply]) -> Steps:
        return self._shared(lambda: self.envs.step(actions))

    def finish(self, names: Sequence[str]) -> None:
        if runtime.rank() == 0:
            self.envs.finish(names)

    def snapshot(self, names: Sequence[str]) -> dict[str, str | EnvFailure]:
        return self._shared(lambda: self.envs.snapshot(names))

    def restore(self, snapshots: Mapping[str, str]) -> dict[str, EnvFailure | None]:
        return self._shared(lambda: self.envs.restore(snapshots))

    def expert(self, names: Sequence[str]) -> dict[str, str | EnvFailure | None]:
        return self._shared(lambda: self.envs.expert(names))

    def legal(self, names: Sequence[str]) -> dict[str, list[str] | EnvFailure]:
        return self._shared(lambda: self.envs.legal(names))

    def _shared(self, act: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        own: dict[str, Any] = {}
        if runtime.rank() == 0:
            own = {name: _packed(answer) for name, answer in act().items()}
        everyone = json.loads(runtime.gather(json.dumps(own).encode())[0])
        return {name: _unpacked(*answer) for name, answer in everyone.items()}


def _packed(answer: Any) -> tuple[str, Any]:
    if isinstance(answer, TimeStep):
        return "TimeStep", checked(answer)
    if isinstance(answer, EnvFailure):
        return "EnvFailure", asdict(answer)
    return "plain", answer


def _unpacked(kind: str, value: Any) -> Any:
    if kind == "plain":
        return value
    return EnvFailure(**value) if kind == "EnvFailure" else from_fields(value)
