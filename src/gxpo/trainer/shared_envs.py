"""Environments under several processes: one of them acts, all see what comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gxpo.learners import parallel
from gxpo.protocols import EnvFailure, Envs, Reply, TimeStep

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
        if parallel.rank() == 0:
            self.envs.finish(names)

    def _shared(self, act: Callable[[], Steps]) -> Steps:
        own: dict[str, Any] = {}
        if parallel.rank() == 0:
            own = {n: {"failed": isinstance(a, EnvFailure), "fields": asdict(a)} for n, a in act().items()}
        everyone = json.loads(parallel.gather(json.dumps(own).encode())[0])
        return {
            n: EnvFailure(**a["fields"]) if a["failed"] else TimeStep(**_restored(a["fields"]))
            for n, a in everyone.items()
        }


def _restored(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples: messages of an observation are one again."""
    said = fields["observation"]
    return fields | {"observation": tuple(said) if isinstance(said, list) else said}
