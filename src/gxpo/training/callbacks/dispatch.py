"""Dispatch a run's events to its callbacks; an exception in one does not end the run."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import described
from gxpo.training.callbacks.base import Callback, Row, Sample

_METHODS = ("on_start", "on_step", "on_evaluation", "on_samples", "on_end")


class Dispatcher:
    """The callbacks of a run by name.

    failures  name -> how many of its calls raised an exception
    """

    def __init__(self, named: Mapping[str, Any], given: Iterable[Any] = ()) -> None:
        """named: from the configuration, by what is written there. given: from Python, by their classes' names."""
        self.parts: dict[str, Any] = dict(named)
        for part in given:
            if isinstance(part, type) or not any(callable(getattr(part, method, None)) for method in _METHODS):
                what = f"the class {part.__name__}" if isinstance(part, type) else type(part).__name__
                raise ConfigError(
                    f"callbacks: {what} is no callback: give an instance of a subclass of gxpo.callbacks.Callback"
                )
            name, alike = type(part).__name__, 2
            while name in self.parts:
                name, alike = f"{type(part).__name__}-{alike}", alike + 1
            self.parts[name] = part
        self.failures: Counter[str] = Counter()
        self._off: set[str] = set()

    def start(self, run: Any) -> None:
        """One whose `on_start` raises is not called again."""
        for name in self.parts:
            before = self.failures[name]
            self._call(name, "on_start", run)
            if self.failures[name] > before:
                self._off.add(name)

    def step(self, row: Row, run: Any) -> None:
        self._all("on_step", row, run)

    def evaluation(self, figures: Row, run: Any) -> None:
        self._all("on_evaluation", figures, run)

    def samples(self, make: Callable[[], Sequence[Sample]], run: Any) -> None:
        """`make` the table where somebody reads it."""
        readers = [name for name, part in self.parts.items() if _overrides(part, "on_samples")]
        if readers:
            table = make()
            for name in readers:
                self._call(name, "on_samples", table, run)

    def end(self, run: Any, error: BaseException | None) -> None:
        self._all("on_end", run, error)
        for name, times in self.failures.items():
            if times > 1:
                warnings.warn(f"callback {name}: {times} of its calls raised an exception", stacklevel=3)
        self._off.clear()

    def state(self) -> dict[str, Any]:
        """What the callbacks want to have back after a resume, by their names; {} where none wants anything."""
        found = {name: self._call(name, "state_dict") for name in self.parts}
        return {name: state for name, state in found.items() if state}

    def load(self, states: Mapping[str, Any]) -> None:
        for name in self.parts:
            if name in states:
                self._call(name, "load_state_dict", states[name])

    def _all(self, method: str, *arguments: Any) -> None:
        for name in self.parts:
            self._call(name, method, *arguments)

    def _call(self, name: str, method: str, *arguments: Any) -> Any:
        function = getattr(self.parts[name], method, None)
        if name in self._off or function is None:
            return None
        try:
            return function(*arguments)
        except Exception as error:
            self.failures[name] += 1
            if self.failures[name] == 1:
                then = "it is not called again" if method == "on_start" else "the run goes on"
                warnings.warn(f"callback {name}: {method}: {described(error)}; {then}", stacklevel=4)
            return None


def _overrides(part: Any, method: str) -> bool:
    return getattr(type(part), method, None) is not getattr(Callback, method)
