"""`gxpo check-env`: play an environment, and draw its instances as a run does before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gxpo.base.errors import GxpoError, TaskError
from gxpo.environments import envs, verifiers, worlds
from gxpo.explain.horizon import Horizon, horizon
from gxpo.parts.settings import RUN_KEYS

HELD_OUT_DRAWN = 8  # held-out instances that are drawn; a run draws eval.tasks


def check(task: str, options: Mapping[str, Any] | None = None, *, episodes: int = 8) -> envs.Check:
    """Play `episodes` seeds of an environment twice, and draw training and held-out instances as a run does.

    task     an environment's name or FILE.py:Class, as the setting `task`
    options  of its constructor, and `pool`

    Raises TaskError for a name that is no environment, ConfigError where the class can't be used at all.
    """
    options = dict(options or {})
    if verifiers.names_tasks(task):
        from gxpo.explain import check_verifiers  # loads the library

        return check_verifiers.check(task, options, episodes=episodes)
    source = envs.source(task, {k: v for k, v in options.items() if k != "pool"})
    if source is None:
        environment_names = ", ".join((*envs.WORLDS, *envs.ADAPTERS))
        raise TaskError(f"{task!r} is no environment; there are {environment_names} and FILE.py:Class")
    report = envs.check(source, seeds=range(episodes))
    return replace(report, problems=(*report.problems, *instances(task, options)))


def horizon_of(task: str, options: Mapping[str, Any], depth: int) -> Horizon:
    """Search the effective horizon of an environment's first four seeds, up to `depth` actions ahead."""
    if verifiers.names_tasks(task):
        raise TaskError(f"{task} is played by its library, which can't be put back to an earlier state")
    source = envs.source(task, {k: v for k, v in options.items() if k != "pool"})
    if source is None:
        raise TaskError(f"{task!r} is no environment: the effective horizon is one's")
    return horizon(source, depth=depth)


def instances(task: str, options: Mapping[str, Any]) -> list[str]:
    """List reasons why a run would be refused before its first step.

    They are: no held-out or no training instances, or a pool larger than the number of instances.
    """
    problems: list[str] = []
    per_step = int(RUN_KEYS["tasks.per_step"])
    world = worlds.make(task, seed=0, options=options, per_step=per_step, workers=1)
    try:
        for draw in (lambda: world.source.draw(per_step, 1), lambda: world.source.held_out(HELD_OUT_DRAWN)):
            try:
                draw()
            except GxpoError as error:
                problems.append(f"gxpo train refuses it: {error}")
    finally:
        world.close()
    return problems
