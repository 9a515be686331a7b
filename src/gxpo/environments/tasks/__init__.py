"""Task sources by name: generators (gxpo's and reasoning-gym's), files of rows, data sets of the hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gxpo.base.errors import TaskError, did_you_mean
from gxpo.environments.tasks.charts import Charts
from gxpo.environments.tasks.code import Code
from gxpo.environments.tasks.countdown import Countdown
from gxpo.environments.tasks.dataset import Dataset
from gxpo.environments.tasks.epochs import PooledTasks
from gxpo.environments.tasks.file import KINDS, TaskFile
from gxpo.environments.tasks.listed import ListedTasks
from gxpo.environments.tasks.np_hard import NPHard
from gxpo.environments.tasks.peers import Peers
from gxpo.environments.tasks.pictures import Pictures
from gxpo.environments.tasks.points import Points
from gxpo.environments.tasks.policies import PolicyDocuments
from gxpo.environments.tasks.reasoning_gym import ReasoningGym
from gxpo.environments.tasks.shapes import Shapes
from gxpo.environments.tasks.source import Arithmetic, GeneratedTasks, check_options

Own = (
    type[Arithmetic] | type[Charts] | type[Code] | type[Countdown] | type[NPHard] | type[Points]
    | type[Pictures] | type[PolicyDocuments] | type[Shapes]
)  # fmt: skip
OWN: dict[str, Own] = {
    "arithmetic": Arithmetic, "countdown": Countdown, "code": Code, "np_hard": NPHard, "points": Points,
    "shapes": Shapes, "charts": Charts, "peers": Peers, "policies": PolicyDocuments,
    "pictures": Pictures,
}  # fmt: skip
Source = GeneratedTasks | ListedTasks | PooledTasks

__all__ = ["OWN", "Arithmetic", "Countdown", "Dataset", "GeneratedTasks", "ReasoningGym", "Source", "TaskFile", "make"]


def make(name: str, *, seed: int, options: Mapping[str, Any] | None = None, per_step: int = 32) -> Source:
    """Make a task source by name.

    name      "arithmetic", "countdown", "code", "np_hard", "points", "shapes", "charts", "peers", "policies",
              "pictures", "reasoning_gym:GENERATOR", "dataset:ID" of the hub, or the path of a .jsonl, .csv or .parquet
              file
    seed      of the training tasks; held-out tasks are the same for every seed
    options   of the source, e.g. {"digits": 3}; of one that generates tasks also `pool`, the number of training tasks
              that there are (see `gxpo.environments.tasks.epochs.PooledTasks`)
    per_step  tasks the trainer draws a step; a file's epochs are cut by it

    Raises `TaskError` for an unknown name, a wrong option or a file that can't be used.

    >>> make("arithmetic", seed=0).draw(1, step=0)[0].prompt[-1]
    '='
    """
    if seed < 0:
        raise TaskError(f"seed must not be negative, not {seed}")
    options = dict(options or {})
    kind, _, identifier = name.partition(":")
    # a file is told by its ending, whatever stands before a colon in its path
    if name.endswith(KINDS):
        return TaskFile.make(name, options, seed=seed, per_step=per_step)
    # every generator takes `pool`: the seed then orders the pool and does not change its tasks
    if "pool" in options and ((kind == "reasoning_gym" and identifier) or name in OWN):
        pool = options.pop("pool")
        generator = make(name, seed=0, options=options, per_step=per_step)
        return PooledTasks(generator, pool, seed, per_step)  # type: ignore[arg-type]  # these generate tasks
    if kind == "reasoning_gym" and identifier:
        check_options(name, options, ReasoningGym.options)
        return ReasoningGym(identifier, seed, **options)
    if kind == "dataset" and identifier:
        return Dataset.make(identifier, options, seed=seed, per_step=per_step)
    if name in OWN:
        check_options(name, options, OWN[name].options)
        return OWN[name](seed=seed, **options)
    # what `gxpo.train(task=OBJECT)` writes into a run's configuration: the object itself is not stored
    if kind == "python":
        raise TaskError(
            f"task {name!r} is a Python object of the script that began the run: give it again, as in "
            "gxpo.resume(RUN, task=...), or begin with one that stands in a file, as my_tasks.py:NAME"
        )
    forms = [*OWN, "reasoning_gym:GENERATOR", "dataset:ID", "FILE.jsonl", "FILE.csv", "FILE.parquet", "FILE.py:NAME"]
    hint = did_you_mean(name, OWN) or f"; there are {', '.join(forms)}"
    raise TaskError(f"unknown task {name!r}{hint}")
