"""Golden files: formula, constants, properties and vectors with expected advantages of each method."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import hint

SCHEMA = "gxpo.vectors/1"


@dataclass(frozen=True)
class Vector:
    """One input and the expected output.

    rewards    one for each trajectory; None = unscored
    groups     opaque ids
    constants  all of the method's, by name
    fields     further columns, one value for each trajectory (`components` and `weights` are lists by reward)
    expected   one number for each trajectory, from the formula alone
    tolerance  absolute below 1, relative above
    note       source of the convention, or purpose of the vector
    """

    method: str
    name: str
    rewards: tuple[float | None, ...]
    groups: tuple[int, ...]
    constants: Mapping[str, Any]
    fields: Mapping[str, Any]
    expected: tuple[float, ...]
    tolerance: float
    note: str = ""

    @property
    def id(self) -> str:
        return f"{self.method}: {self.name}"

    def compare(self, actual: Sequence[float], tolerance: float | None = None) -> None:
        """Compare with the expected numbers; raises AssertionError with input, expected and actual ones."""
        note = f" ({self.note})" if self.note else ""
        about = f"{self.id}{note}: rewards {list(self.rewards)}, groups {list(self.groups)}, "
        about += ", ".join(f"{k} {v}" for k, v in {**self.constants, **self.fields}.items())
        close(actual, self.expected, self.tolerance if tolerance is None else tolerance, about)


@dataclass(frozen=True)
class Golden:
    """Golden file of a method.

    arxiv       where the formula is from ("" = no preprint)
    constants   their defaults
    inputs      "real" rewards, or "binary" (0 and 1 alone)
    properties  names in `gxpo.conformance.properties.PROPERTIES` that its formula has
    """

    method: str
    arxiv: str
    formula: str
    notes: str
    constants: Mapping[str, Any]
    inputs: str
    properties: tuple[str, ...]
    vectors: tuple[Vector, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields that every vector has."""
        return tuple(k for k in self.vectors[0].fields if all(k in v.fields for v in self.vectors))


def close(
    actual: Sequence[float], expected: Sequence[float], tolerance: float, about: str, unit: str = "trajectory"
) -> None:
    """Compare numbers; raises AssertionError if one is off by more than `tolerance` x max(1, |expected|), or is nan."""
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        # "not <=", since a nan is neither
        if not abs(a - b) <= tolerance * max(1.0, abs(b)):
            raise AssertionError(f"{about}: {unit} {i} should be {b:.9g} and is {a:.9g}; all: {_short(actual)}")


def _short(xs: Sequence[float]) -> str:
    return "[" + ", ".join("nan" if math.isnan(x) else f"{x:.7g}" for x in xs) + "]"


@cache
def names() -> tuple[str, ...]:
    """List the methods with a golden file, in alphabetical order."""
    files = (resources.files("gxpo.conformance") / "data").iterdir()
    return tuple(sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json")))


@cache
def golden(method: str) -> Golden:
    """Read the golden file of a method; raises ConfigError for a method without one.

    >>> golden("dr_grpo").vectors[0].expected
    (0.75, -0.25, -0.25, -0.25)
    """
    if method not in names():
        raise ConfigError(f"no golden vectors of {method!r}{hint(method, names())}; there are {', '.join(names())}")
    path = resources.files("gxpo.conformance") / "data" / f"{method}.json"
    entry = json.loads(path.read_text(encoding="utf-8"))
    if entry.pop("schema") != SCHEMA:
        raise ConfigError(f"data/{method}.json is not of schema {SCHEMA}")
    vectors = tuple(
        Vector(
            method=method,
            rewards=tuple(v.pop("rewards")),
            groups=tuple(v.pop("groups")),
            expected=tuple(v.pop("expected")),
            **v,
        )
        for v in entry.pop("vectors")
    )
    return Golden(**{**entry, "properties": tuple(entry["properties"]), "vectors": vectors})
