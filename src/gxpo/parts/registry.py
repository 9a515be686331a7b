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

from gxpo.base.imports import collections_paused
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
    "likelihood",
)
OF_FUNCTIONS = {  # stage -> its `FunctionPart`: how a pure function becomes a part of the stage
    "credit": "gxpo.algorithms.credit.function:Advantage",
    "signal": "gxpo.algorithms.signals.base:Computed",
    "surrogate": "gxpo.algorithms.objectives.surrogate:SurrogateFunction",
    "ratio": "gxpo.algorithms.objectives.surrogate:RatioFunction",
    "control": "gxpo.algorithms.objectives.control:ByProgress",
    "segment": "gxpo.algorithms.segments.base:Cuts",
    "sampler": "gxpo.environments.tasks.sampler:TaskSampler",
}
T = TypeVar("T", bound=Callable[..., Any])
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DECORATOR = re.compile(r'^@part\(\s*"([a-z0-9_]+)",\s*stage="([a-z]+)"', re.MULTILINE)


def part(name: str, *, stage: str, **facts: Any) -> Callable[[T], T]:
    """Register the class or pure function below as a part, under its name in configurations.

    stage  one of `STAGES`: what the part is of, and with that the keys that may name it
    facts  of a function: attributes of the part (see `functions.function_part`)
    Raises ValueError where a name or stage can't be one, and TypeError for what is no dataclass or can't be made.
    """
    if stage not in STAGES or not _NAME.fullmatch(name):
        raise ValueError(f"part({name!r}, stage={stage!r}): a lower-case name, and one of {', '.join(STAGES)}")

    def register(kind: Any) -> Any:
        # the function itself is returned, so that it can be called and tested as one
        if inspect.isfunction(kind) and stage in OF_FUNCTIONS:
            function_part_class = function_part(kind, _of_functions(stage), **facts)
            function_part_class.__part__, kind.__kind__ = (stage, name), function_part_class  # type: ignore[attr-defined]  # see `show` and `kind_of`
            return kind
        if facts or not dataclasses.is_dataclass(kind) or inspect.isabstract(kind):
            raise TypeError(f"part {name!r}: {getattr(kind, '__name__', kind)} is no dataclass that can be made")
        kind.__part__ = (stage, name)  # type: ignore[attr-defined]  # of this class alone: see `show`
        return kind

    return register


@cache
def of_function(function: Callable[..., Any], stage: str) -> Any:
    """The part of a stage that a function without a name is; the function itself where it has the stage's protocol."""
    if stage not in OF_FUNCTIONS or not inspect.isfunction(function) or not _of_functions(stage).accepts(function):
        return function
    return function_part(function, _of_functions(stage))


def _of_functions(stage: str) -> type[FunctionPart]:
    module, name = OF_FUNCTIONS[stage].split(":")
    return getattr(importlib.import_module(module), name)


@cache
def _modules_of(folder: str) -> Mapping[tuple[str, str], str]:
    """(stage, name) of each part of a folder -> the module whose source states it."""
    # names come from the sources by a regular expression: importing all modules of a stage would take seconds
    modules: dict[tuple[str, str], str] = {}
    package = importlib.import_module(folder)
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        module = f"{folder}.{info.name}"
        loader = info.module_finder.find_spec(module).loader  # type: ignore[union-attr, call-arg]
        for name, stage in _DECORATOR.findall(loader.get_source(module)):  # type: ignore[union-attr]
            # two parts of one name: which one is found would depend on the order of imports
            if (stage, name) in modules:
                raise ValueError(f"{folder} has two parts named {name!r}")
            modules[stage, name] = module
    return modules


class Table(Mapping[str, Any]):
    """The parts of a stage that the modules of the package `gxpo.PACKAGE` define, by name.

    Names are read from the sources: of the modules only that of a part that is asked for is imported.
    """

    def __init__(self, stage: str, package: str) -> None:
        self.stage, self.package = stage, f"gxpo.{package}"
        self._parts: dict[str, Any] = {}

    @cached_property
    def _modules(self) -> dict[str, str]:
        return {name: module for (stage, name), module in _modules_of(self.package).items() if stage == self.stage}

    def __getitem__(self, name: str) -> Any:
        # composing a method asks for the same few parts many times, and a scan of a module's members takes a while
        if name not in self._parts:
            self._parts[name] = self._load(name)
        return self._parts[name]

    def _load(self, name: str) -> Any:
        # a full collection during the first import walks everything that torch made: a third of its time
        with collections_paused():
            module = importlib.import_module(self._modules[name])
        members = (kind_of(x) for x in vars(module).values() if inspect.isclass(x) or inspect.isfunction(x))
        mark = (self.stage, name)
        return next(x for x in members if x.__module__ == module.__name__ and vars(x).get("__part__") == mark)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


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
LIKELIHOODS = Table("likelihood", "algorithms.likelihoods")

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
    ("likelihoods", "likelihood", LIKELIHOODS),
)


def place_of(folder: str, name: str) -> tuple[str, Table]:
    """The slot, and the table, of a folder's part."""
    return next((slot, table) for home, slot, table in PLACES if home == folder and name in table)


_SLOTS = {slot.removesuffix("NAME"): table for _, slot, table in PLACES} | {
    "credit.add.": CREDITS,
    "reward.shape.": REWARDS,
    "reward.step.": REWARDS,
    "objective": TERMS,
}


def table_at(key: str) -> Table | None:
    """The table of the parts that a key may name; None for the key of an option or setting."""
    if key.endswith(".control"):
        return CONTROLS
    head, dot, _ = key.rpartition(".")
    return _SLOTS.get(key, _SLOTS.get(head + dot) if dot else None)


def part_at(key: str, value: Any) -> Any:
    """The part that a key's value names; the value itself where it names none."""
    table = table_at(key) if isinstance(value, str) else None
    return value if table is None or value not in table else table[value]
