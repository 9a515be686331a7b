"""The parts by the names that configurations use.

    @part("pass_at_k", stage="credit")
    @dataclass(frozen=True)
    class PassAtK(CreditPart): ...

A part is a public frozen dataclass of its stage's folder that can be made; it needs no entry anywhere else. One that
states no name has its class's, in lower case with underscores, and its stage by its base.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from gxpo import former
from gxpo.keys import show

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
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_COMBINATIONS = ("CreditSum", "TermSum", "WeightProduct")


def part(name: str, *, stage: str) -> Callable[[type], type]:
    """Name a part: what stands in a configuration for the class below.

    stage  one of `STAGES`: what the part is of, and with that the keys that may name it
    Raises ValueError where a name or stage can't be one, and TypeError for what is no dataclass or can't be made.
    """
    if stage not in STAGES or not _NAME.fullmatch(name):
        raise ValueError(f"part({name!r}, stage={stage!r}): a lower-case name, and one of {', '.join(STAGES)}")

    def named(kind: type) -> type:
        if not dataclasses.is_dataclass(kind) or inspect.isabstract(kind):
            raise TypeError(f"part {name!r}: {kind.__name__} is no dataclass that can be made")
        kind.__part__ = (stage, name)  # type: ignore[attr-defined]  # of this class alone: see `show`
        return kind

    return named


class Table(Mapping[str, Any]):
    """Every part that a module of the folder `gxpo.FOLDER` defines, by name.

    stage    of `part`
    base     "module:class" that parts without a stated name derive from, or "method()" that they have

    The modules are imported when the table is first read: a method whose parts are given as classes reads few tables.
    """

    def __init__(self, stage: str, folder: str, base: str) -> None:
        self.stage, self._folder, self._base = stage, f"gxpo.{folder}", base

    @cached_property
    def _found(self) -> dict[str, type]:
        folder, is_part = importlib.import_module(self._folder), self._is_part()
        found: dict[str, type] = {}
        for module in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)):
            loaded = importlib.import_module(f"{folder.__name__}.{module}")
            for name, kind in inspect.getmembers(loaded, inspect.isclass):
                own = kind.__module__ == loaded.__name__ and not name.startswith("_") and name not in _COMBINATIONS
                if not (own and dataclasses.is_dataclass(kind)) or inspect.isabstract(kind):
                    continue
                stated = vars(kind).get("__part__")
                if not (is_part(kind) if stated is None else stated[0] == self.stage):
                    continue
                if show(kind) in found:
                    raise ValueError(f"{folder.__name__} has two parts named {show(kind)!r}")
                found[show(kind)] = kind
        return found

    def _is_part(self) -> Callable[[type], bool]:
        if self._base.endswith("()"):
            return lambda kind: callable(getattr(kind, self._base[:-2], None))
        module, _, name = self._base.partition(":")
        base = getattr(importlib.import_module(f"{self._folder}.{module}"), name)
        return lambda kind: issubclass(kind, base)

    def __getitem__(self, name: str) -> Any:
        if name not in self._found and name in former.table(folder := self._folder.removeprefix("gxpo.")):
            return former.FormerPart(folder, name, name)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


CREDITS = Table("credit", "credit", "base:CreditPart")
WEIGHTS = Table("weight", "weighting", "base:WeightPart")
ROLLOUTS = Table("rollout", "rollouts", "grow()")
REWARDS = Table("reward", "rewards", "base:RewardPart")
SEGMENTERS = Table("segment", "segments", "base:Segmenter")
SIGNALS = Table("signal", "signals", "base:SignalPart")
SURROGATES = Table("surrogate", "objectives", "surrogate:Surrogate")
RATIOS = Table("ratio", "objectives", "surrogate:Ratio")
CONTROLS = Table("control", "objectives", "control:Control")
TERMS = Table("term", "objectives", "base:TermPart")
UPDATES = Table("update", "learners", "run()")

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
