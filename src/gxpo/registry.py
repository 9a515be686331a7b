"""The parts by the names that configurations use.

    @part("pass_at_k", stage="credit")
    @dataclass(frozen=True)
    class PassAtK(CreditPart): ...

A part is a frozen dataclass in its stage's folder; the name that it states is its only entry. A user's own class needs
none: it is given by its file and name, or as an object.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

from gxpo import former

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
)
T = TypeVar("T")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def part(name: str, *, stage: str) -> Callable[[type[T]], type[T]]:
    """Name a part: what stands in a configuration for the class below.

    stage  one of `STAGES`: what the part is of, and with that the keys that may name it
    Raises ValueError where a name or stage can't be one, and TypeError for what is no dataclass or can't be made.
    """
    if stage not in STAGES or not _NAME.fullmatch(name):
        raise ValueError(f"part({name!r}, stage={stage!r}): a lower-case name, and one of {', '.join(STAGES)}")

    def named(kind: type[T]) -> type[T]:
        if not dataclasses.is_dataclass(kind) or inspect.isabstract(kind):
            raise TypeError(f"part {name!r}: {kind.__name__} is no dataclass that can be made")
        kind.__part__ = (stage, name)  # type: ignore[attr-defined]  # of this class alone: see `show`
        return kind

    return named


class Table(Mapping[str, Any]):
    """The parts of a stage that the modules of the folder `gxpo.FOLDER` define, by name.

    The modules are imported when the table is first read: a method whose parts are given as classes reads few tables.
    """

    def __init__(self, stage: str, folder: str) -> None:
        self.stage, self._folder = stage, f"gxpo.{folder}"

    @cached_property
    def _found(self) -> dict[str, type]:
        folder = importlib.import_module(self._folder)
        found: dict[str, type] = {}
        for module in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)):
            loaded = importlib.import_module(f"{folder.__name__}.{module}")
            for _, kind in inspect.getmembers(loaded, inspect.isclass):
                stage, name = vars(kind).get("__part__", ("", ""))
                if kind.__module__ != loaded.__name__ or stage != self.stage:
                    continue
                if name in found:
                    raise ValueError(f"{folder.__name__} has two parts named {name!r}")
                found[name] = kind
        return found

    def __getitem__(self, name: str) -> Any:
        if name not in self._found and name in former.table(folder := self._folder.removeprefix("gxpo.")):
            return former.FormerPart(folder, name, name)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


CREDITS = Table("credit", "credit")
WEIGHTS = Table("weight", "weighting")
ROLLOUTS = Table("rollout", "rollouts")
REWARDS = Table("reward", "rewards")
SEGMENTERS = Table("segment", "segments")
SIGNALS = Table("signal", "signals")
SURROGATES = Table("surrogate", "objectives")
RATIOS = Table("ratio", "objectives")
CONTROLS = Table("control", "objectives")
TERMS = Table("term", "objectives")
UPDATES = Table("update", "learners")

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
)


def place_of(folder: str, name: str) -> tuple[str, Table]:
    """The slot, and the table, of a folder's part."""
    return next((slot, table) for home, slot, table in PLACES if home == folder and name in table)
