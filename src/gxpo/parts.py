"""The parts by the names that configurations use: a part's name is its class's, in lower case with underscores.

A part is a public frozen dataclass of its stage's folder that can be made; it needs no entry anywhere else.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from gxpo import former
from gxpo.keys import show

_COMBINATIONS = ("CreditSum", "TermSum", "WeightProduct")


class Table(Mapping[str, Any]):
    """Every part that a module of the folder `gxpo.FOLDER` defines, by name.

    base     "module:class" that parts derive from, or "method()" that they have

    The modules are imported when the table is first read: a method whose parts are given as classes reads few tables.
    """

    def __init__(self, folder: str, base: str) -> None:
        self._folder, self._base = f"gxpo.{folder}", base

    @cached_property
    def _found(self) -> dict[str, type]:
        folder, is_part = importlib.import_module(self._folder), self._is_part()
        found: dict[str, type] = {}
        for module in sorted(m.name for m in pkgutil.iter_modules(folder.__path__)):
            loaded = importlib.import_module(f"{folder.__name__}.{module}")
            for name, kind in inspect.getmembers(loaded, inspect.isclass):
                own = kind.__module__ == loaded.__name__ and not name.startswith("_") and name not in _COMBINATIONS
                if not (own and is_part(kind) and dataclasses.is_dataclass(kind)) or inspect.isabstract(kind):
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


CREDITS = Table("credit", "base:CreditPart")
WEIGHTS = Table("weighting", "base:WeightPart")
ROLLOUTS = Table("rollouts", "grow()")
REWARDS = Table("rewards", "base:RewardPart")
SEGMENTERS = Table("segments", "base:Segmenter")
SIGNALS = Table("signals", "base:SignalPart")
GATES = Table("objectives", "surrogate:Surrogate")
RATIOS = Table("objectives", "ratio:Ratio")
CONTROLS = Table("objectives", "control:Control")
TERMS = Table("objectives", "base:TermPart")
UPDATES = Table("learners", "run()")

PLACES = (  # folder, slot and table of each kind of part
    ("credit", "credit", CREDITS),
    ("weighting", "weight.NAME", WEIGHTS),
    ("rollouts", "rollout", ROLLOUTS),
    ("rewards", "reward.add.NAME", REWARDS),
    ("segments", "segment", SEGMENTERS),
    ("signals", "signal.NAME", SIGNALS),
    ("objectives", "objective.gate", GATES),
    ("objectives", "objective.ratio", RATIOS),
    ("objectives", "objective.kl.control", CONTROLS),
    ("objectives", "objective.add.NAME", TERMS),
    ("learners", "update", UPDATES),
)


def place_of(folder: str, name: str) -> tuple[str, Table]:
    """The slot, and the table, of a folder's part."""
    return next((slot, table) for home, slot, table in PLACES if home == folder and name in table)
