"""Reward functions: a file's (`my_rewards.py:exact`), a Python callable, a task's own scorer, one for a whole step."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.errors import ConfigError
from gxpo.protocols import Task
from gxpo.rewards.batch import AsyncEach, Batch, takes_batch
from gxpo.rewards.rubric import Rubric, is_rubric
from gxpo.rewards.worker import parameters
from gxpo.usercode import Unusable, object_at, unusable
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
    verdict  where it is grouped: it gives a number for each rollout, as a function of one rollout does
    answered it can't do without a task's answer
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
    verdict: bool = False
    answered: bool = False

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
    if path == "python":
        raise ConfigError(
            f"{what}{text!r} is a Python object of the script that began the run: give it again, as in "
            "gxpo.resume(RUN, reward=...), or begin with one that stands in a file"
        )
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
    told = {"gives": getattr(call, "gives", None), "answered": getattr(call, "answered", False)}
    return Function(str(own), label, call=call, grouped=True, reports=tuple(getattr(call, "reports", ())), **told)


def from_file(text: str) -> Function:
    """Reward function from `path/to/my_rewards.py:exact`; the file is read here and run in the worker only.

    Its parameters are read without running it: one of (forest, texts, tasks), one of a batch (`batch.Batch`), an async
    one and a rubric of verifiers are loaded in this process.
    """
    source = source_of(text)
    name = source["name"]
    found = _declared(source["code"], name)
    if found is None:
        return Function(name, text, {**source, "label": text, "is_scorer": False})
    names, keywords, here, answered = found
    if names[:3] == STEP:
        return grouped(load(text), text, name)
    if here or takes_batch(names, text, keywords=keywords):
        try:
            made = object_at(f"{source['file']}:{name}", always=True)
        except Unusable as error:
            raise ConfigError(f"reward {text}: {error}") from error
        return dataclasses.replace(from_callable(made), label=text)
    return Function(name, text, {**source, "label": text, "is_scorer": False}, answered=answered)


def _declared(code: bytes, name: str) -> tuple[tuple[str, ...], bool, bool, bool] | None:
    """Of a function of a file: its parameters, whether it takes any others, whether it is loaded in this process
    (async, a rubric, of another module), whether it must be given an answer. None where there is no such, or the file
    can't be read, which is reported when it is loaded."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError):
        return None
    for x in body:
        if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef)) and x.name == name:
            positional = [a.arg for a in (*x.args.posonlyargs, *x.args.args)]
            named = [a.arg for a in x.args.kwonlyargs]
            optional = positional[len(positional) - len(x.args.defaults) :]
            optional += [a for a, default in zip(named, x.args.kw_defaults, strict=True) if default is not None]
            keywords, here = x.args.kwarg is not None, isinstance(x, ast.AsyncFunctionDef)
            return (*positional, *named), keywords, here, "answer" in {*positional, *named} - set(optional)
        if isinstance(x, ast.ImportFrom) and any((a.asname or a.name) == name for a in x.names):
            return (), False, True, False
        if isinstance(x, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in x.targets):
            made = x.value.func if isinstance(x.value, ast.Call) else None
            kind = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
            return ((), False, True, False) if kind.endswith(("Rubric", "RubricGroup")) else None
    return None


def from_callable(function: Any) -> Function:
    """Reward function from a Python callable: of one rollout, of a batch (`batch.Batch`), of (forest, texts, tasks); or
    from a rubric of verifiers.

    One of one rollout that a fresh interpreter can import goes to the worker. A lambda, a closure, or a function of the
    script or notebook itself can't be sent: it runs in process, where exceptions and nonsense are caught but nothing
    ends a hang.
    """
    if is_rubric(function):
        rubric = Rubric(function)
        told = {"verdict": len(rubric.reports) == 1, "reports": rubric.reports}
        return Function("rubric", f"verifiers.{type(function).__name__}", call=rubric, grouped=True, **told)
    kind: Any = function if hasattr(function, "__qualname__") else type(function)
    label = f"{getattr(kind, '__module__', '?')}.{kind.__qualname__}"
    name = getattr(function, "__name__", type(function).__name__)
    name = name if name.isidentifier() else "reward"
    try:
        declared = inspect.signature(function).parameters
    except (TypeError, ValueError):
        declared = {}  # what can't be read is reported below
    if tuple(declared)[:3] == STEP:
        return grouped(function, label, getattr(function, "name", None))
    keywords = any(p.kind is p.VAR_KEYWORD for p in declared.values())
    named = [n for n, p in declared.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if takes_batch(named, label, keywords=keywords):
        return Function(name, label, call=Batch(function, label), grouped=True, verdict=True)
    label = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', name)}"
    try:
        asks = parameters(function)
    except Unusable as error:
        raise ConfigError(f"reward {label}: {error}") from error
    answered = "answer" in declared and declared["answer"].default is inspect.Parameter.empty
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        each = AsyncEach(function, label, name, asks)
        return Function(name, label, call=each, grouped=True, verdict=True, answered=answered)
    pickled = importable(function)
    if pickled is None:
        return Function(name, label, call=function, asks=asks, answered=answered)
    source = {"pickle": pickled, "label": label, "is_scorer": False}
    return Function(name, label, source, asks=asks, answered=answered)


def from_scorer(
    scorer: Callable[..., Any], *, trusted: bool, computes: bool = False, example: Task | None = None
) -> Function:
    """Reward function from a task's own scorer. A trusted one (gxpo's own code, which can't hang) runs in process. One
    that `computes`, and waits for nothing, has a limit of processor time, beyond which the answer is wrong.

    In a worker it first scores an empty text for `example`, so that what it imports is there.
    """
    label = "the task's scorer"
    pickled = None if trusted else importable(scorer)
    if pickled is None:
        return Function("correct", label, call=scorer, trusted=trusted)
    rehearsal = None if example is None else importable((("", example), {}))
    source = {"pickle": pickled, "label": label, "is_scorer": True, "rehearsal": rehearsal, "computes": computes}
    return Function("correct", label, source)


def importable(value: Any) -> bytes | None:
    """Pickle of `value`, or None where another interpreter could not load it."""
    try:
        pickled = pickle.dumps(value)
    except Exception:
        return None
    return None if b"__main__" in pickled else pickled
