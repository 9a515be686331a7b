"""Task sources: generators (our own and reasoning-gym's), JSON Lines, data sets, environment instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gxpo.errors import TaskError, did_you_mean
from gxpo.tasks.code import Code
from gxpo.tasks.countdown import Countdown
from gxpo.tasks.dataset import Dataset
from gxpo.tasks.jsonl import JsonLines
from gxpo.tasks.listed import ListedTasks
from gxpo.tasks.points import Points
from gxpo.tasks.reasoning_gym import ReasoningGym
from gxpo.tasks.source import Arithmetic, GeneratedTasks, check_options

OWN: dict[str, type[Arithmetic] | type[Countdown] | type[Code] | type[Points]] = {
    "arithmetic": Arithmetic, "countdown": Countdown, "code": Code, "points": Points,
}  # fmt: skip
Source = GeneratedTasks | ListedTasks

__all__ = ["OWN", "Arithmetic", "Countdown", "Dataset", "GeneratedTasks", "JsonLines", "ReasoningGym", "Source", "make"]


def make(name: str, *, seed: int, options: Mapping[str, Any] | None = None, per_step: int = 32) -> Source:
    """Make the task source called `name`.

    name      "arithmetic", "countdown", "code", "points", "reasoning_gym:GENERATOR", "dataset:ID" of the hub, or a
              .jsonl file's path
    seed      of the training tasks; held-out tasks are the same for every seed
    options   of the source, e.g. {"digits": 3}
    per_step  tasks the trainer draws a step; a file's epochs are cut by it

    Raises `TaskError` for an unknown name, a wrong option or a file that can't be used.

    >>> make("arithmetic", seed=0).draw(1, step=0)[0].prompt[-1]
    '='
    """
    if seed < 0:
        raise TaskError(f"seed must not be negative, not {seed}")
    options = dict(options or {})
    kind, _, rest = name.partition(":")
    if name.endswith(".jsonl"):
        check_options(name, options, JsonLines.options)
        held_out = options.pop("held_out", None)
        return JsonLines(name, seed, held_out_path=held_out, per_step=per_step, **options)
    if kind == "reasoning_gym" and rest:
        check_options(name, options, ReasoningGym.options)
        return ReasoningGym(rest, seed, **options)
    if kind == "dataset" and rest:
        return Dataset.make(rest, options, seed=seed, per_step=per_step)
    if name in OWN:
        check_options(name, options, OWN[name].options)
        return OWN[name](seed=seed, **options)
    known = [*OWN, "reasoning_gym:GENERATOR", "dataset:ID", "PATH.jsonl"]
    hint = did_you_mean(name, OWN) or f"; there are {', '.join(known)}"
    raise TaskError(f"unknown task {name!r}{hint}")
