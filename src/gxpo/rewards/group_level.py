"""Group-level rewards, computed on all rollouts of a step at once: votes, pairwise judges, batched sandboxes."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from gxpo.errors import ConfigError, GxpoError, did_you_mean
from gxpo.usercode import described, one_line, unusable
from gxpo.usercode import from_file as object_of_file

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Task

ASKS = ("forest", "texts", "tasks")  # what such a function's first parameters are called
Failure = tuple[str, str]  # ("raised" | "timeout" | "died" | "nonsense", message)


class GroupReward(Protocol):
    """Protocol of group-level rewards: named values [R] of any float dtype for all rollouts of a step; nan = unscored.

    forest  all rollouts that are scored together, whole groups of them; their outcomes are not known yet
    texts   [R] what each says;   tasks  [R] what each was asked

    It runs in process: a time limit is its own affair. A `GxpoError` is about the set-up and ends the run; any other
    exception leaves all rollouts of the call unscored and is counted. Optional attributes:

    name        the component a plain tensor becomes, and how messages call it
    gives       names of its components, where they are known beforehand
    reports     those of them that are recorded and not counted, unless they are given a weight by name
    failures()  what went wrong since it was last asked, a (kind, message) a trajectory; without it, every trajectory
                that got no number counts as "nonsense"
    bind(verify)  called once: `verify(forest, texts, tasks)` is component "correct" [R] of the tasks' own verifier
    """

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Mapping[str, Tensor] | Tensor:
        """See the class."""
        ...


@dataclass(frozen=True)
class Grouped:
    """Group-level reward with its name and label."""

    name: str
    label: str
    call: Callable[..., Any]
    gives: tuple[str, ...] | None = None
    reports: tuple[str, ...] = ()

    @property
    def label_free(self) -> bool:
        """Whether it replaces the verifier, so that tasks need no answer."""
        return hasattr(self.call, "bind")


def wrap(call: Callable[..., Any], label: str, name: str | None = None) -> Grouped:
    """Wrap a group-level reward, with names from its own attributes."""
    own = getattr(call, "name", None) or getattr(call, "__name__", None) or type(call).__name__
    return Grouped(name or str(own), label, call, getattr(call, "gives", None), tuple(getattr(call, "reports", ())))


def from_callable(call: Callable[..., Any]) -> Grouped | None:
    """Group-level reward from a callable of (forest, texts, tasks); None where it scores one rollout."""
    try:
        declared = tuple(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return None
    if declared[:3] != ASKS:
        return None
    kind = call if hasattr(call, "__qualname__") else type(call)
    return wrap(call, f"{getattr(kind, '__module__', '?')}.{kind.__qualname__}", getattr(call, "name", None))


def from_file(text: str) -> Grouped | None:
    """Group-level reward from `my_rewards.py:tournament`, if that is a function of (forest, texts, tasks); else None.

    Its parameters are read without running the file: what scores one rollout is loaded in a worker only.
    """
    path, _, name = text.rpartition(":")
    file = Path(path).expanduser()
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None  # reported when it is loaded
    if not any(isinstance(x, ast.FunctionDef) and x.name == name and _declared(x)[:3] == ASKS for x in body):
        return None
    return wrap(load(text), text, name)


def _declared(function: ast.FunctionDef) -> tuple[str, ...]:
    return tuple(a.arg for a in (*function.args.posonlyargs, *function.args.args))


def load(text: str) -> Callable[..., Any]:
    """Load the function `my_file.py:name` in this process."""
    path, colon, name = text.rpartition(":")
    file = Path(path).expanduser()
    if not colon or not name.isidentifier():
        raise ConfigError(f"{text!r}: name a function in a file, as in my_judge.py:ask")
    if not file.is_file():
        raise ConfigError(f"{text!r}: there is no file {path} (looked in {Path.cwd()})")
    file = file.resolve()
    source = {"file": str(file), "folder": str(file.parent), "code": file.read_bytes(), "name": name}
    try:
        return object_of_file(source, type(load), f"gxpo_user_{file.stem}")
    except Exception as error:
        raise ConfigError(f"{text}: {unusable(error)}") from error


def made(kind: type, options: Mapping[str, Any], name: str) -> Any:
    """Build the dataclass `kind` from `scoring.options.NAME`."""
    known = {f.name: f for f in dataclasses.fields(kind) if f.init}
    for key in options:
        if key not in known:
            there = did_you_mean(key, known) or f"; there is {', '.join(known)}"
            raise ConfigError(f"scoring.options.{name} has no {key!r}{there}")
    return kind(**options)


def rate(
    grouped: Grouped,
    names: tuple[str, ...] | None,
    forest: Forest,
    texts: Sequence[str],
    tasks: Sequence[Task],
    counted: Callable[[str], bool],
) -> tuple[dict[str, Tensor] | None, list[Failure]]:
    """Evaluate a group-level reward: its components [R] and failures; None for the components if the whole call failed.

    names    what it gave before, None as long as that is unknown;   counted  whether a component has a weight
    """
    n = forest.n_trajectories
    try:
        value = grouped.call(forest, texts, tasks)
        columns = _columns(grouped.name, value, n)
        if names is not None and set(columns) != set(names):
            raise ValueError(f"{', '.join(columns)} where it usually returns {', '.join(names)}")
    except GxpoError:
        raise
    except ValueError as error:
        return None, [("nonsense", one_line(f"returned {error}"))] * n
    except Exception as error:
        return None, [("raised", described(error))] * n
    if hasattr(grouped.call, "failures"):
        return columns, list(grouped.call.failures())
    blank = torch.zeros(n, dtype=torch.bool)
    for name, column in columns.items():
        blank |= column.isnan() & counted(name)
    return columns, [("nonsense", "gave no number")] * int(blank.sum())


def _columns(name: str, value: Any, n: int) -> dict[str, Tensor]:
    named = value if isinstance(value, Mapping) else {name: value}
    if not named:
        raise ValueError("no values")
    out = {}
    for key, column in named.items():
        if not isinstance(key, str):
            raise ValueError(f"values named {key!r}")
        x = torch.as_tensor(column).detach().to("cpu", torch.float64)
        if x.shape != (n,):
            raise ValueError(f"{key!r} of shape {tuple(x.shape)} for {n} rollouts")
        out[key] = torch.where(x.isfinite(), x, math.nan)
    return out
