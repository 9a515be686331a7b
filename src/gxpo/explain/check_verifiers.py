"""`gxpo check-env verifiers:NAME`: let the library play some tasks with one reply to every call, twice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.base.errors import GxpoError
from gxpo.environments.envs import Check
from gxpo.environments.verifiers.episodes import INFO, rehearse
from gxpo.environments.verifiers.tasks import VerifiersTasks
from gxpo.parts.protocols import Task

REPLY = "ok"  # what is said in every turn, in the place of a policy


def check(task: str, options: Mapping[str, Any] | None = None, *, episodes: int = 8) -> Check:
    """Play the first `episodes` tasks of each side twice with the reply "ok", and report what broke or differed.

    Raises TaskError where the environment needs what is not here; its first tool servers are started by then.
    """
    started = time.perf_counter()
    source = VerifiersTasks(task, options)
    reset_seconds = time.perf_counter() - started
    tasks = [*source.training[:episodes], *source.held_out(episodes)]
    started = time.perf_counter()
    first, second = ([_outcome(one) for one in tasks] for _ in range(2))
    turns = sum(sum(outcome["info"][INFO]["turns"]) for outcome in (*first, *second) if "info" in outcome)
    seconds = time.perf_counter() - started
    return Check(
        name=task,
        provides=source.components,
        episodes=2 * len(tasks),
        turns=turns,
        contents=len({one.info["key"] for one in tasks}),
        states=0,
        success=None,
        reset_seconds=reset_seconds,
        step_seconds=seconds / max(turns, 1),
        problems=tuple(_problems(tasks, first, second)),
    )


def _outcome(task: Task) -> dict[str, Any]:
    """Outcome of a task, or the message of what broke in it."""
    try:
        return rehearse(task, REPLY)
    except GxpoError as error:
        return {"broken": str(error)}


def _problems(
    tasks: Sequence[Task], first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> list[str]:
    broken = [(task, outcome["broken"]) for task, outcome in zip(tasks, first, strict=True) if "broken" in outcome]
    problems = (
        [f"{len(broken)} of {len(tasks)} episodes broke, first {broken[0][0].id}: {broken[0][1]}"] if broken else []
    )
    different = [
        f"{task.id}: the same replies are paid {a['reward']:g} and {b['reward']:g}"
        for task, a, b in zip(tasks, first, second, strict=True)
        if "broken" not in a and "broken" not in b and a["reward"] != b["reward"]
    ]
    return problems + different[:1]
