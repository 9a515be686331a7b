"""Check an implementation against golden vectors and properties, with or without pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import Unusable, object_at
from gxpo.conformance.golden import Golden, golden, names
from gxpo.conformance.properties import PROPERTIES

OWN = "gxpo.conformance.own:advantages"
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Result:
    """Result of a check. status: "passed", "failed" or "not supported"; `detail` says why it is not the first."""

    method: str
    name: str
    status: str
    detail: str = ""


def load(path: str | None) -> Callable[..., Sequence[float]]:
    """Load `module:function` or `file.py:function`; gxpo's own for None. Raises ConfigError."""
    try:
        found = object_at(path or OWN)
    except Unusable as error:
        raise ConfigError(f"--impl {path}: {error}") from None
    if not callable(found):
        raise ConfigError(f"--impl {path} is a {type(found).__name__}; give a function (method, rewards, groups, ...)")
    return cast("Callable[..., Sequence[float]]", found)


@dataclass(frozen=True)
class Implementation:
    """A function under test; `tolerance` replaces the vectors' own, for float32 (1e-5, say)."""

    function: Callable[..., Sequence[float]]
    tolerance: float | None = None

    def call(
        self,
        method: str,
        rewards: Sequence[float | None],
        groups: Sequence[int],
        constants: Mapping[str, Any],
        fields: Mapping[str, Any],
    ) -> list[float]:
        """Its advantages. NotImplementedError is passed on; AssertionError for the wrong number of them."""
        found = [float(x) for x in self.function(method, list(rewards), list(groups), **constants, **fields)]
        if len(found) != len(rewards):
            raise AssertionError(f"{method}: {len(found)} numbers for {len(rewards)} trajectories")
        return found

    def vector(self, method: str, index: int) -> None:
        """Raises AssertionError if vector `index` gives other numbers."""
        v = golden(method).vectors[index]
        v.compare(self.call(method, v.rewards, v.groups, v.constants, v.fields), self.tolerance)

    def property(self, method: str, name: str) -> None:
        """Raises AssertionError if the property does not hold."""

        def call(*arguments: Any) -> list[float]:
            return self.call(method, *arguments)

        try:
            PROPERTIES[name](call, golden(method), TOLERANCE if self.tolerance is None else self.tolerance)
        except AssertionError as error:
            raise AssertionError(f"{method}: {name} ({PROPERTIES[name].__doc__}) {error}") from None

    def supports(self, method: str) -> bool:
        """Whether it gives numbers for any vector of the method."""
        for v in golden(method).vectors:
            try:
                self.call(method, v.rewards, v.groups, v.constants, v.fields)
            except NotImplementedError:
                continue
            return True
        return False


def trials(entry: Golden) -> Iterator[tuple[str, Callable[[Implementation], None]]]:
    """All checks of a method, by name."""
    for index, v in enumerate(entry.vectors):
        yield v.name, lambda tried, index=index: tried.vector(entry.method, index)
    for name in entry.properties:
        yield f"property {name}", lambda tried, name=name: tried.property(entry.method, name)


def check(
    function: Callable[..., Sequence[float]] | str | None = None,
    methods: Sequence[str] | None = None,
    tolerance: float | None = None,
) -> list[Result]:
    """Check `function` (or `module:function`) against every vector and property of the methods (default: all).

    >>> def mine(method, rewards, groups, **given):
    ...     if method != "dr_grpo" or None in rewards:
    ...         raise NotImplementedError(method)
    ...     mean = {g: [r for r, h in zip(rewards, groups) if h == g] for g in groups}
    ...     return [r - sum(mean[g]) / len(mean[g]) for r, g in zip(rewards, groups)]
    >>> found = check(mine, ["dr_grpo"])
    >>> sorted({result.status for result in found})
    ['not supported', 'passed']
    """
    tried = Implementation(load(function) if function is None or isinstance(function, str) else function, tolerance)
    found: list[Result] = []
    for method in names() if methods is None else methods:
        for name, trial in trials(golden(method)):
            try:
                trial(tried)
            except NotImplementedError as error:
                found.append(Result(method, name, "not supported", str(error)))
            except AssertionError as error:
                found.append(Result(method, name, "failed", str(error)))
            else:
                found.append(Result(method, name, "passed"))
    return found
