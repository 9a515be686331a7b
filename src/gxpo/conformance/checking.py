"""Check an implementation against golden vectors and properties, with or without pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import Unusable, object_at
from gxpo.conformance.golden import Golden, golden, names
from gxpo.conformance.properties import PROPERTIES

BUILTIN = "gxpo.conformance.builtin:advantages"
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Result:
    """Result of a check. status: "passed", "failed" or "not supported"; `detail` is the reason unless it passed."""

    method: str
    name: str
    status: str
    detail: str = ""


def load(path: str | None) -> Callable[..., Sequence[float]]:
    """Load `module:function` or `file.py:function`; None: gxpo's own methods. Raises ConfigError."""
    try:
        function = object_at(path or BUILTIN)
    except Unusable as error:
        raise ConfigError(f"--impl {path}: {error}") from None
    if not callable(function):
        raise ConfigError(
            f"--impl {path} is a {type(function).__name__}; give a function (method, rewards, groups, ...)"
        )
    return cast("Callable[..., Sequence[float]]", function)


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
        """Compute advantages; raises AssertionError for the wrong number of them, and passes NotImplementedError on."""
        advantages = [float(x) for x in self.function(method, list(rewards), list(groups), **constants, **fields)]
        if len(advantages) != len(rewards):
            raise AssertionError(f"{method}: {len(advantages)} numbers for {len(rewards)} trajectories")
        return advantages

    def vector(self, method: str, index: int) -> None:
        """Compare with vector `index`; raises AssertionError for other numbers."""
        v = golden(method).vectors[index]
        v.compare(self.call(method, v.rewards, v.groups, v.constants, v.fields), self.tolerance)

    def property(self, method: str, name: str) -> None:
        """Test a property; raises AssertionError if it does not hold."""

        def call(*arguments: Any) -> list[float]:
            return self.call(method, *arguments)

        try:
            PROPERTIES[name](call, golden(method), TOLERANCE if self.tolerance is None else self.tolerance)
        except AssertionError as error:
            raise AssertionError(f"{method}: {name} ({PROPERTIES[name].__doc__}) {error}") from None

    def supports(self, method: str) -> bool:
        """Return True if it gives numbers for any vector of the method."""
        for v in golden(method).vectors:
            try:
                self.call(method, v.rewards, v.groups, v.constants, v.fields)
            except NotImplementedError:
                continue
            return True
        return False


def trials(entry: Golden) -> Iterator[tuple[str, Callable[[Implementation], None]]]:
    """Yield (name, check) of all vectors and properties of a method."""
    for index, v in enumerate(entry.vectors):
        yield v.name, lambda implementation, index=index: implementation.vector(entry.method, index)
    for name in entry.properties:
        yield f"property {name}", lambda implementation, name=name: implementation.property(entry.method, name)


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
    implementation = Implementation(
        load(function) if function is None or isinstance(function, str) else function, tolerance
    )
    results: list[Result] = []
    for method in names() if methods is None else methods:
        for name, trial in trials(golden(method)):
            # "not supported" is a result of its own: counted as passed it would hide what was never tried
            try:
                trial(implementation)
            except NotImplementedError as error:
                results.append(Result(method, name, "not supported", str(error)))
            except AssertionError as error:
                results.append(Result(method, name, "failed", str(error)))
            else:
                results.append(Result(method, name, "passed"))
    return results
