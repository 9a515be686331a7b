"""Registry of parts by name, as configurations write them.

    @part("pairwise_auc", stage="credit")
    def pairwise_auc(mean_behaviour_logprob, correct, group, acts, *, tau: Annotated[float, Gt(0)] = 0.6): ...

    @part("gae", stage="credit")
    @dataclass(frozen=True)
    class Gae(CreditPart): ...

A part is a pure function, where its stage has an entry in `OF_FUNCTIONS`, or a frozen dataclass, in its stage's
folder; the name that it states is its only entry. A user's own needs none: it is given by its file and name, or as an
object.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, TypeVar

from gxpo.parts.definition import kind_of
from gxpo.parts.functions import FunctionPart, function_part

STAGES = (
    "credit",
    "weight",
    "rollout",
    "reward",
    "segment",
    "signal",
    "surrogate",
    "ratio",
    "control",
    "term",
    "update",
    "sampler",
)
OF_FUNCTIONS = {  # stage -> its `FunctionPart`: how a pure function becomes a part of the stage
    "credit": "gxpo.algorithms.credit.function:Advantage",
    "signal": "gxpo.algorithms.signals.function:Computed",
    "surrogate": "gxpo.algorithms.objectives.surrogate:SurrogateFunction",
    "ratio": "gxpo.algorithms.objectives.surrogate:RatioFunction",
    "control": "gxpo.algorithms.objectives.control:ByProgress",
    "segment": "gxpo.algorithms.segments.base:Cuts",
    "sampler": "gxpo.environments.tasks.sampler:TaskSampler",
}
T = TypeVar("T", bound=Callable[..., Any])
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def part(name: str, *, stage: str, **facts: Any) -> Callable[[T], T]:
    """Name a part: what stands in a configuration for the class or pure function below.

    stage  one of `STAGES`: what the part is of, and with that the keys that may name it
    facts  of a function: attributes of the part (see `functions.function_part`)
    Raises ValueError where a name or stage can't be one, and TypeError for what is no dataclass or can't be made.
    """
    if stage not in STAGES or not _NAME.fullmatch(name):
        raise ValueError(f"part({name!r}, stage={stage!r}): a lower-case name, and one of {', '.join(STAGES)}")

    def named(kind: Any) -> Any:
        if inspect.isfunction(kind) and stage in OF_FUNCTIONS:
            made = function_part(kind, _of_functions(stage), **facts)
            made.__part__, kind.__kind__ = (stage, name), made  # type: ignore[attr-defined]  # see `show` and `kind_of`
            return kind
        if facts or not dataclasses.is_dataclass(kind) or inspect.isabstract(kind):
            raise TypeError(f"part {name!r}: {getattr(kind, '__name__', kind)} is no dataclass that can be made")
        kind.__part__ = (stage, name)  # type: ignore[attr-defined]  # of this class alone: see `show`
        return kind

    return named


@cache
def of_function(function: Callable[..., Any], stage: str) -> Any:
    """The part of a stage that a function without a name is; the function itself where it has the stage's protocol."""
    if stage not in OF_FUNCTIONS or not inspect.isfunction(function) or not _of_functions(stage).accepts(function):
        return function
    return function_part(function, _of_functions(stage))


def _of_functions(stage: str) -> type[FunctionPart]:
    module, name = OF_FUNCTIONS[stage].split(":")
    return getattr(importlib.import_module(module), name)


class Table(Mapping[str, Any]):
    """The parts of a stage that the modules of the package `gxpo.PACKAGE` define, by name.

    The modules are imported when the table is first read: a method whose parts are given as classes reads few tables.
    """

    def __init__(self, stage: str, package: str) -> None:
        self.stage, self.package = stage, f"gxpo.{package}"

    @cached_property
    def _found(self) -> dict[str, type]:
        folder = importlib.import_module(self.package)
        found: dict[str, type] = {}
        for module in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)):
            loaded = importlib.import_module(f"{folder.__name__}.{module}")
            for _, kind in inspect.getmembers(loaded, lambda x: inspect.isclass(x) or inspect.isfunction(x)):
                kind = kind_of(kind)
                stage, name = vars(kind).get("__part__", ("", ""))
                if kind.__module__ != loaded.__name__ or stage != self.stage:
                    continue
                if name in found:
                    raise ValueError(f"{folder.__name__} has two parts named {name!r}")
                found[name] = kind
        return found

    def __getitem__(self, name: str) -> Any:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


CREDITS = Table("credit", "algorithms.credit")
WEIGHTS = Table("weight", "algorithms.weighting")
ROLLOUTS = Table("rollout", "sampling.rollouts")
REWARDS = Table("reward", "environments.rewards")
SEGMENTERS = Table("segment", "algorithms.segments")
SIGNALS = Table("signal", "algorithms.signals")
SURROGATES = Table("surrogate", "algorithms.objectives")
RATIOS = Table("ratio", "algorithms.objectives")
CONTROLS = Table("control", "algorithms.objectives")
TERMS = Table("term", "algorithms.objectives")
UPDATES = Table("update", "learning")
SAMPLERS = Table("sampler", "environments.tasks")

PLACES = (  # folder, slot and table of each kind of part
    ("credit", "credit", CREDITS),
    ("weighting", "weight.NAME", WEIGHTS),
    ("rollouts", "rollout", ROLLOUTS),
    ("rewards", "reward.add.NAME", REWARDS),
    ("segments", "segment", SEGMENTERS),
    ("signals", "signal.NAME", SIGNALS),
    ("objectives", "objective.surrogate", SURROGATES),
    ("objectives", "objective.ratio", RATIOS),
    ("objectives", "objective.kl.control", CONTROLS),
    ("objectives", "objective.add.NAME", TERMS),
    ("learners", "update", UPDATES),
    ("tasks", "tasks.sampler", SAMPLERS),
)


def place_of(folder: str, name: str) -> tuple[str, Table]:
    """The slot, and the table, of a folder's part."""
    return next((slot, table) for home, slot, table in PLACES if home == folder and name in table)


_FOLDERS = {  # slot -> folder of its parts; a slot that takes any number of parts by name ends in a dot
    "credit": "credit",
    "credit.add.": "credit",
    "weight.": "weighting",
    "rollout": "rollouts",
    "segment": "segments",
    "tasks.sampler": "tasks",
    "reward.shape.": "rewards",
    "reward.step.": "rewards",
    "reward.add.": "rewards",
    "signal.": "signals",
    "update": "learners",
    "objective": "objectives",
    "objective.surrogate": "objectives",
    "objective.ratio": "objectives",
    "objective.add.": "objectives",
}


def folder_of(key: str) -> str | None:
    """The folder of the parts that a key may name; None where the key takes no part."""
    if key in _FOLDERS:
        return _FOLDERS[key]
    if key.endswith(".control"):
        return "objectives"
    head, _, name = key.rpartition(".")
    return _FOLDERS.get(f"{head}.") if name else None
