"""Callbacks of a run: made by their names in a configuration (`tensorboard`, `trackio`, `wandb`, `file.py:Class`), and
called at its events; an exception in one does not end the run."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.base.usercode import NotRun, Unusable, described, object_at
from gxpo.training.callbacks.base import Callback, Row, Sample

# ---------------------------------------------------------------- by name
LOGGERS = {
    "tensorboard": "gxpo.training.callbacks.loggers:TensorBoard",
    "trackio": "gxpo.training.callbacks.loggers:Trackio",
    "wandb": "gxpo.training.callbacks.loggers:Wandb",
}


def make(names: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Make the callbacks of `trainer.callbacks`, by name, with their `logging.options`.

    Raises ConfigError for one that does not exist or can't be made, MissingExtra if a logger's package is missing.
    """
    options = options or {}
    if unknown := [name for name in options if name not in names]:
        raise ConfigError(f"logging.options.{unknown[0]}: {unknown[0]} is not in trainer.callbacks")
    return {name: _make_one(name, dict(options.get(name, {}))) for name in names}


def check(names: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Check names and options as `make` does; inside `usercode.unexecuted` a user's file need only define the name."""
    for name in names:
        try:
            make([name], {k: v for k, v in (options or {}).items() if k == name})
        except NotRun:
            continue


def _make_one(name: str, options: dict[str, Any]) -> Any:
    if name in LOGGERS:
        module, _, class_name = LOGGERS[name].partition(":")
        callback_class = getattr(importlib.import_module(module), class_name)
    elif ":" not in name:
        raise ConfigError(
            f"trainer.callbacks: no logger {name!r}{did_you_mean(name, LOGGERS)} "
            f"({', '.join(LOGGERS)}, or file.py:Class)"
        )
    else:
        try:
            callback_class = object_at(name)
        except Unusable as error:
            raise ConfigError(f"trainer.callbacks: {error}") from error
    try:
        return callback_class(**options)
    except TypeError as error:
        key = f"logging.options.{name}" if options else f"trainer.callbacks: {name}"
        raise ConfigError(f"{key}: {described(error)}") from error


# ---------------------------------------------------------------- calls
_METHODS = ("on_start", "on_step", "on_evaluation", "on_samples", "on_end")


class Dispatcher:
    """Callbacks of a run by name, called at its events.

    failures  number of calls that raised an exception, by name
    """

    def __init__(self, by_name: Mapping[str, Any], objects: Iterable[Any] = ()) -> None:
        """by_name: from the configuration, by their names there. objects: from Python, named after their classes."""
        self.parts: dict[str, Any] = dict(by_name)
        # A class, or an object without a method of the protocol, would silently never be called.
        for part in objects:
            if isinstance(part, type) or not any(callable(getattr(part, method, None)) for method in _METHODS):
                kind = f"the class {part.__name__}" if isinstance(part, type) else type(part).__name__
                raise ConfigError(
                    f"callbacks: {kind} is no callback: give an instance of a subclass of gxpo.callbacks.Callback"
                )
            # States in checkpoints are by name, so two callbacks of one class need two names.
            name, number = type(part).__name__, 2
            while name in self.parts:
                name, number = f"{type(part).__name__}-{number}", number + 1
            self.parts[name] = part
        self.failures: Counter[str] = Counter()
        self._disabled_names: set[str] = set()

    def start(self, run: Any) -> None:
        """Call `on_start`; a callback that raises there is not called again."""
        for name in self.parts:
            failures_before = self.failures[name]
            self._call(name, "on_start", run)
            if self.failures[name] > failures_before:
                self._disabled_names.add(name)

    def step(self, row: Row, run: Any) -> None:
        self._call_all("on_step", row, run)

    def evaluation(self, figures: Row, run: Any) -> None:
        self._call_all("on_evaluation", figures, run)

    def samples(self, make: Callable[[], Sequence[Sample]], run: Any) -> None:
        """Call `on_samples`; the table is made only if a callback overrides that method."""
        readers = [name for name, part in self.parts.items() if _overrides(part, "on_samples")]
        if readers:
            table = make()
            for name in readers:
                self._call(name, "on_samples", table, run)

    def end(self, run: Any, error: BaseException | None) -> None:
        self._call_all("on_end", run, error)
        for name, n_failures in self.failures.items():
            if n_failures > 1:
                warnings.warn(f"callback {name}: {n_failures} of its calls raised an exception", stacklevel=3)
        self._disabled_names.clear()  # a run that goes on starts its callbacks anew

    def state(self) -> dict[str, Any]:
        """Return the non-empty states of the callbacks by name, for a checkpoint."""
        states = {name: self._call(name, "state_dict") for name in self.parts}
        return {name: state for name, state in states.items() if state}

    def load(self, states: Mapping[str, Any]) -> None:
        for name in self.parts:
            if name in states:
                self._call(name, "load_state_dict", states[name])

    def _call_all(self, method: str, *arguments: Any) -> None:
        for name in self.parts:
            self._call(name, method, *arguments)

    def _call(self, name: str, method: str, *arguments: Any) -> Any:
        function = getattr(self.parts[name], method, None)
        if name in self._disabled_names or function is None:
            return None
        try:
            return function(*arguments)
        except Exception as error:
            # The first failure is shown at once; `end` shows their number, so a broken logger does not flood the run.
            self.failures[name] += 1
            if self.failures[name] == 1:
                consequence = "it is not called again" if method == "on_start" else "the run goes on"
                warnings.warn(f"callback {name}: {method}: {described(error)}; {consequence}", stacklevel=4)
            return None


def _overrides(part: Any, method: str) -> bool:
    return getattr(type(part), method, None) is not getattr(Callback, method)
