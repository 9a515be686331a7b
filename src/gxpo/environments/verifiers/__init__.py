"""Environments of the verifiers library, 0.4 and later, whose own code plays the episodes.

`world` loads an environment, or says what it needs that is not here; `tasks` makes its tasks a source of a run;
`episodes` lets the library play a task against the endpoint of `rollout: agent`; `chat` is the loop of a seat that
names no harness. Environments of the classic API (before 0.4) are worlds: `envs.adapters.verifiers`.
"""

from __future__ import annotations

from importlib import metadata

PREFIX = "verifiers:"
KEYS = {"rollout": "agent", "rollout.run": "gxpo.environments.verifiers.episodes:play"}  # of a run on such tasks

__all__ = ["KEYS", "PREFIX", "names_tasks"]


def names_tasks(name: str) -> bool:
    """Return True if a task's name is an environment of the library that its own code plays.

    >>> names_tasks("arithmetic")
    False
    """
    return name.startswith(PREFIX) and not _is_classic()


def _is_classic() -> bool:
    """Return True if the installed library is older than 0.4, whose environments are of the classic API."""
    try:
        major, minor = metadata.version("verifiers").split(".")[:2]
    except metadata.PackageNotFoundError:
        return False
    return (int(major), int(minor)) < (0, 4)
