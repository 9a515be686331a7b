"""Symptoms of failing runs and the published methods against them: the table behind `gxpo methods --for SYMPTOM`.

The table is data, `symptoms.yaml` beside this file, and is read when something of it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from gxpo.base import yamltext

PATH = Path(__file__).with_name("symptoms.yaml")
T = TypeVar("T")


@dataclass(frozen=True)
class Advice:
    """A method (or composition) for a symptom: why, what else to set, and the claim in CLAIMS that supports it."""

    method: str
    why: str
    claim: str = ""
    sets: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """Command line that applies the advice."""
        return " ".join(["gxpo train CONFIG", *(f"--set {s}" for s in (f"method={self.method}", *self.sets))])


@dataclass(frozen=True)
class Symptom:
    """A failure of training runs, in users' words.

    also        synonyms
    signs       words that mean it together, wherever they stand in a sentence; each has alternatives
    sicknesses  ids of the doctor's for the same failure, for which remedies were measured
    """

    what: str
    also: tuple[str, ...]
    advice: tuple[Advice, ...]
    sicknesses: tuple[str, ...] = ()
    signs: tuple[tuple[tuple[str, ...], ...], ...] = ()


@cache
def _tables() -> tuple[dict[str, str], dict[str, Symptom], tuple[str, ...]]:
    """Claims, symptoms, and words of other subjects of the file."""
    document = yamltext.plain(yamltext.load(PATH.read_text(encoding="utf-8"), PATH.name), PATH.name)
    symptoms = {
        name: Symptom(
            row["what"],
            tuple(row["also"]),
            tuple(Advice(**{**advice, "sets": tuple(advice.get("sets", ()))}) for advice in row["advice"]),
            tuple(row.get("sicknesses", ())),
            tuple(tuple(tuple(word.split("|")) for word in sign.split()) for sign in row["signs"]),
        )
        for name, row in document["symptoms"].items()
    }
    return document["claims"], symptoms, tuple(document["outside"])


class _Lazy(Mapping[str, T]):
    """A table of the file, which is read when the table is first looked into: importing this module reads nothing."""

    def __init__(self, table: Callable[[], Mapping[str, T]]) -> None:
        self._table = table

    def __getitem__(self, key: str) -> T:
        return self._table()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table())

    def __len__(self) -> int:
        return len(self._table())


CLAIMS: Mapping[str, str] = _Lazy(lambda: _tables()[0])  # what a recommendation rests on, where it can be computed
SYMPTOMS: Mapping[str, Symptom] = _Lazy(lambda: _tables()[1])


def foreign_words() -> tuple[str, ...]:
    """Words of sentences about software and machines, which no symptom of the table is about."""
    return _tables()[2]
