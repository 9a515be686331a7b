"""Reward functions: a file's (`my_rewards.py:exact`), a Python callable, a task's own scorer, one for a whole step."""

from __future__ import annotations

import ast
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.errors import ConfigError
from gxpo.protocols import Task
from gxpo.rewards.worker import parameters
from gxpo.usercode import Unusable, unusable
from gxpo.usercode import from_file as object_of_file

STEP = ("forest", "texts", "tasks")  # the first parameters of a function that sees all rollouts of a step


@dataclass(frozen=True)
class Function:
    """Reward function, before it is loaded.

    name     the component a plain number becomes; a returned mapping names its own
    label    how messages call it
    source   what a worker loads (`gxpo.rewards.worker.load`), None: it runs in process, without a time limit
    call     the callable, where it runs in process
    asks     parameters it is called with; None: `(text, task)`, as a task's scorer is
    trusted  gxpo's own code that can't hang
    gives    names of its components where they are known beforehand
    grouped  it is called once with all rollouts of a step: a `group_level.GroupReward`; it runs in process
    reports  components of a grouped one that are recorded and not counted
    """

    name: str
    label: str
    source: dict[str, Any] | None = None
    call: Callable[..., Any] | None = None
    asks: tuple[str, ...] | None = None
    trusted: bool = False
    gives: tuple[str, ...] | None = None
    grouped: bool = False
    reports: tuple[str, ...] = ()

    @property
    def is_scorer(self) -> bool:
        """Whether it is called as `(text, task)`."""
        return self.source["is_scorer"] if self.source is not None else self.asks is None and not self.grouped

    @property
    def endless(self) -> bool:
        """Whether it should have a time limit and has none."""
        return self.source is None and not (self.trusted or self.grouped)

    @property
    def label_free(self) -> bool:
        """Whether it replaces the verifier, so that tasks need no answer."""
        return self.grouped and hasattr(self.call, "bind")


def names_file(text: str) -> bool:
    """Whether a reward's name refers to a function in a file."""
    return ":" in text or text.endswith(".py") or "/" in text


def source_of(text: str, what: str = "reward ", example: str = "my_rewards.py:exact") -> dict[str, Any]:
    """The file, its content and the function's name in `path/to/my_rewards.py:exact`, for `usercode.from_file`."""
    path, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        example = f"{text}:FUNCTION" if text.endswith(".py") else example
        raise ConfigError(f"{what}{text!r}: name a function in the file, as in {example}")
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"{what}{text!r}: there is no file {path} (looked in {Path.cwd()})")
    file = file.resolve()
    return {"file": str(file), "folder": str(file.parent), "code": file.read_bytes(), "name": name}


def load(text: str) -> Callable[..., Any]:
    """Load the function `my_file.py:name` in this process."""
    source = source_of(text, "", "my_judge.py:ask")
    try:
        return object_of_file(source, type(load), f"gxpo_user_{Path(source['file']).stem}")
    except Exception as error:
        raise ConfigError(f"{text}: {unusable(error)}") from error


def grouped(call: Callable[..., Any], label: str, name: str | None = None) -> Function:
    """Group-level reward, with names from its own attributes."""
    own = name or getattr(call, "name", None) or getattr(call, "__name__", None) or type(call).__name__
    reports = tuple(getattr(call, "reports", ()))
    return Function(str(own), label, call=call, gives=getattr(call, "gives", None), grouped=True, reports=reports)


def from_file(text: str) -> Function:
    """Reward function from `path/to/my_rewards.py:exact`; the file is read here and run in the worker only.

    Its parameters are read without running it: one of (forest, texts, tasks) is loaded in this process.
    """
    source = source_of(text)
    if _declared(source["code"], source["name"])[:3] == STEP:
        return grouped(load(text), text, source["name"])
    return Function(source["name"], text, {**source, "label": text, "is_scorer": False})


def _declared(code: bytes, name: str) -> tuple[str, ...]:
    """Parameters of a function of a file; none where the file can't be read, which is reported when it is loaded."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError):
        return ()
    found = [x.args for x in body if isinstance(x, ast.FunctionDef) and x.name == name]
    return tuple(a.arg for args in found[:1] for a in (*args.posonlyargs, *args.args))


def from_callable(function: Callable[..., Any]) -> Function:
    """Reward function from a Python callable, of one rollout or of (forest, texts, tasks).

    One that a fresh interpreter can import goes to the worker. A lambda, a closure, or a function of the script or
    notebook itself can't be sent: it runs in process, where exceptions and nonsense are caught but nothing ends a hang.
    """
    kind: Any = function if hasattr(function, "__qualname__") else type(function)
    label = f"{getattr(kind, '__module__', '?')}.{kind.__qualname__}"
    try:
        if tuple(inspect.signature(function).parameters)[:3] == STEP:
            return grouped(function, label, getattr(function, "name", None))
    except (TypeError, ValueError):
        pass  # what can't be read is reported below
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
