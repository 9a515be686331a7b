"""User reward functions: `my_rewards.py:exact`, a Python callable, a task's own scorer."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.errors import ConfigError
from gxpo.protocols import Task
from gxpo.rewards.worker import parameters
from gxpo.usercode import Unusable


@dataclass(frozen=True)
class Function:
    """Reward function, before it is loaded.

    name     the component a plain number becomes; a returned mapping names its own
    label    how messages call it
    source   what a worker loads (`gxpo.rewards.worker.load`), None: it runs in process, without a time limit
    call     the callable, where it runs in process
    asks     parameters it is called with; None: `(text, task)`, as a task's scorer is
    trusted  gxpo's own code that can't hang
    gives    names of its components where they are known before it runs
    """

    name: str
    label: str
    source: dict[str, Any] | None = None
    call: Callable[..., Any] | None = None
    asks: tuple[str, ...] | None = None
    trusted: bool = False
    gives: tuple[str, ...] | None = None

    @property
    def is_scorer(self) -> bool:
        """Whether it is called as `(text, task)`."""
        return self.source["is_scorer"] if self.source is not None else self.asks is None

    @property
    def endless(self) -> bool:
        """Whether it runs without a time limit."""
        return self.source is None and not self.trusted


def names_file(text: str) -> bool:
    """Whether a reward's name refers to a function in a file."""
    return ":" in text or text.endswith(".py") or "/" in text


def from_file(text: str) -> Function:
    """Reward function from `path/to/my_rewards.py:exact`; the file is read here and run in the worker only."""
    path, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise ConfigError(f"reward {text!r}: name a function in the file, as in my_rewards.py:exact")
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"reward {text!r}: there is no file {path} (looked in {Path.cwd()})")
    file = file.resolve()
    source = {"file": str(file), "folder": str(file.parent), "code": file.read_bytes(), "name": name}
    source |= {"label": text, "is_scorer": False}
    return Function(name, text, source)


def from_callable(function: Callable[..., Any]) -> Function:
    """Reward function from a Python callable.

    One that a fresh interpreter can import goes to the worker. A lambda, a closure, or a function of the script or
    notebook itself can't be sent: it runs in process, where exceptions and nonsense are caught but nothing ends a hang.
    """
    name = getattr(function, "__name__", type(function).__name__)
    name = name if name.isidentifier() else "reward"
    label = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', name)}"
    try:
        asks = parameters(function)
    except Unusable as error:
        raise ConfigError(f"reward {label}: {error}") from error
    pickled = importable(function)
    if pickled is None:
        return Function(name, label, call=function, asks=asks)
    return Function(name, label, {"pickle": pickled, "label": label, "is_scorer": False}, asks=asks)


def from_scorer(scorer: Callable[..., Any], *, trusted: bool, example: Task | None = None) -> Function:
    """Reward function from a task's own scorer. A trusted one (gxpo's own code, which can't hang) runs in process.

    In a worker it first scores an empty text for `example`, so that what it imports is there.
    """
    label = "the task's scorer"
    pickled = None if trusted else importable(scorer)
    if pickled is None:
        return Function("correct", label, call=scorer, trusted=trusted)
    rehearsal = None if example is None else importable((("", example), {}))
    source = {"pickle": pickled, "label": label, "is_scorer": True, "rehearsal": rehearsal}
    return Function("correct", label, source)


def importable(value: Any) -> bytes | None:
    """Pickle of `value`, or None where another interpreter could not load it."""
    try:
        pickled = pickle.dumps(value)
    except Exception:
        return None
    return None if b"__main__" in pickled else pickled
