"""Golden vectors of losses: tokens with the expected value and gradient of an objective."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import hint
from gxpo.conformance.checking import Result, load
from gxpo.conformance.golden import close

SCHEMA = "gxpo.losses/1"
BUILTIN = "gxpo.conformance.builtin:loss"
LossFunction = Callable[..., tuple[float, Sequence[float]]]


@dataclass(frozen=True)
class LossVector:
    """Tokens of several rows, with the expected value and gradient of an objective.

    logprobs, old  of the current policy and of the one that the ratio divides by
    advantages     one for each token
    rows           opaque ids: tokens of one answer have the same, and are consecutive
    aggregate      "token_mean" | "sequence_mean" | "sequence_sum" (divided by the constant `horizon`)
    value, gradient  the loss, and its derivative by each log-prob, from the formula alone
    """

    objective: str
    name: str
    logprobs: tuple[float, ...]
    old: tuple[float, ...]
    advantages: tuple[float, ...]
    rows: tuple[int, ...]
    aggregate: str
    constants: Mapping[str, Any]
    value: float
    gradient: tuple[float, ...]
    tolerance: float
    note: str = ""

    @property
    def id(self) -> str:
        return f"{self.objective}: {self.name}"

    def check(self, function: LossFunction, tolerance: float | None = None) -> None:
        """Compare value and gradient; raises AssertionError for other numbers, and passes NotImplementedError on."""
        columns = (list(x) for x in (self.logprobs, self.old, self.advantages, self.rows))
        value, gradient = function(self.objective, *columns, self.aggregate, **self.constants)
        bound = self.tolerance if tolerance is None else tolerance
        about = f"{self.id}, {', '.join(f'{k} {v}' for k, v in self.constants.items())}"
        slopes = [float(x) for x in gradient]
        if len(slopes) != len(self.gradient):
            raise AssertionError(f"{about}: {len(slopes)} slopes for {len(self.gradient)} tokens")
        close([float(value)], [self.value], bound, about, "the value of batch")
        close(slopes, self.gradient, bound, about, "the slope of token")


@dataclass(frozen=True)
class Losses:
    """Golden file of an objective."""

    objective: str
    arxiv: str
    formula: str
    notes: str
    constants: Mapping[str, Any]
    vectors: tuple[LossVector, ...]


@cache
def objectives() -> tuple[str, ...]:
    """List the objectives with golden losses, in alphabetical order: names of methods."""
    files = (resources.files("gxpo.conformance") / "data_losses").iterdir()
    return tuple(sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json")))


@cache
def losses(objective: str) -> Losses:
    """Read the golden losses of an objective; raises ConfigError for an objective without any.

    >>> [round(x, 6) for x in losses("grpo").vectors[0].gradient]
    [0.0, -0.180967, 0.0, 0.244281, 0.329744]
    """
    if objective not in objectives():
        objective_names = ", ".join(objectives())
        raise ConfigError(
            f"no golden losses of {objective!r}{hint(objective, objectives())}; there are {objective_names}"
        )
    path = resources.files("gxpo.conformance") / "data_losses" / f"{objective}.json"
    entry = json.loads(path.read_text(encoding="utf-8"))
    if entry.pop("schema") != SCHEMA:
        raise ConfigError(f"data_losses/{objective}.json is not of schema {SCHEMA}")
    return Losses(**entry | {"vectors": tuple(_vector(objective, row) for row in entry["vectors"])})


def _vector(objective: str, row: Mapping[str, Any]) -> LossVector:
    columns: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return LossVector(objective, **columns)


def check_losses(
    function: LossFunction | str | None = None,
    names: Sequence[str] | None = None,
    tolerance: float | None = None,
) -> list[Result]:
    """Check a function (or `module:function`, or gxpo's own objectives) against every vector of objectives.

    names  objectives; default: all
    """
    loss_function: Any = load(function or BUILTIN) if function is None or isinstance(function, str) else function
    results: list[Result] = []
    for name in objectives() if names is None else names:
        for vector in losses(name).vectors:
            try:
                vector.check(loss_function, tolerance)
            except NotImplementedError as error:
                results.append(Result(name, vector.name, "not supported", str(error)))
            except AssertionError as error:
                results.append(Result(name, vector.name, "failed", str(error)))
            else:
                results.append(Result(name, vector.name, "passed"))
    return results
