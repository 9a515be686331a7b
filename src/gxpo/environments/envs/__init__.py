"""Environments by name: gxpo's toy worlds, a user's class, or another library's; `EnvPool` runs them in batches."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import ConfigError
from gxpo.environments.envs.sources import EnvSource
from gxpo_worlds import WORLDS

if TYPE_CHECKING:
    from gxpo.environments.envs.pool import EnvPool
    from gxpo.environments.envs.trial import Check, check

ADAPTERS = {  # NAME:ID, the ID in that library
    "gymnasium": "gxpo.environments.envs.gym:GymEnv",
    "minigrid": "gxpo.environments.envs.adapters.minigrid:MiniGrid",
    "openenv": "gxpo.environments.envs.adapters.openenv:OpenEnv",
    "pettingzoo": "gxpo.environments.envs.adapters.pettingzoo:PettingZoo",
    "textarena": "gxpo.environments.envs.adapters.textarena:TextArena",
    "textarena-seats": "gxpo.environments.envs.adapters.textarena_seats:TextArenaSeats",
    "textworld": "gxpo.environments.envs.adapters.textworld:TextWorldExpress",
    "verifiers": "gxpo.environments.envs.adapters.verifiers:Verifiers",
}
LIBRARIES = {  # of the adapters: what is imported, and the extra that brings it
    "gymnasium": ("gymnasium", "envs"),
    "minigrid": ("minigrid", "minigrid"),
    "openenv": ("websockets", "openenv"),
    "pettingzoo": ("pettingzoo", "envs"),
    "textarena": ("textarena", "textarena"),
    "textarena-seats": ("textarena", "textarena"),
    "textworld": ("textworld_express", "textworld"),
    "verifiers": ("verifiers", "verifiers"),
}

_HOMES = {
    "EnvPool": "gxpo.environments.envs.pool",
    "Check": "gxpo.environments.envs.trial",
    "check": "gxpo.environments.envs.trial",
}

__all__ = ["ADAPTERS", "LIBRARIES", "WORLDS", "Check", "EnvPool", "EnvSource", "check", "source"]


def __getattr__(name: str) -> Any:  # worker processes need none of these, and start sooner without
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gxpo.environments.envs' has no attribute {name!r}")


def source(name: str, options: Mapping[str, Any] | None = None) -> EnvSource | None:
    """Find the environment called `name`; None if no environment has that name.

    name     a world of gxpo ("sokoban"), an adapter with an id of its library ("gymnasium:CliffWalking-v1"; the id
             becomes the option `id`), or a class of a file ("my_env.py:MyEnv")
    options  for the constructor

    Raises `ConfigError` for a file that is not there and for a name that is almost one. Nothing is loaded yet.

    >>> source("gymnasium:CliffWalking-v1").options
    {'id': 'CliffWalking-v1'}
    >>> source("arithmetic") is None
    True
    """
    options = dict(options or {})
    # a path may hold a colon of its own, so a file comes before the names with a part after the colon
    if name.endswith(".py") or name.rpartition(":")[0].endswith(".py"):
        return EnvSource.of_file(name, options)
    head, colon, rest = name.partition(":")
    # gxpo's own worlds can't hang: they may run in the trainer's process
    if head in WORLDS:
        if colon:
            raise ConfigError(f"environment {name!r}: {head} takes its settings as tasks.options, not after a colon")
        return EnvSource.of_module(WORLDS[head], options, name=name, trusted=True)
    if head in ADAPTERS:
        if colon and "id" in options:
            raise ConfigError(f"environment {name!r}: the id is part of its name: remove it from tasks.options")
        options = {"id": rest, **options} if colon else options
        return EnvSource.of_module(ADAPTERS[head], options, name=name)
    return None
