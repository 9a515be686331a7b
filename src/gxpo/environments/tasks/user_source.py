"""A user's own task source: an object or class with `draw` and `held_out`, or a function that returns rows."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import GxpoError, TaskError
from gxpo.base.usercode import Unusable, described, object_at
from gxpo.environments.tasks.epochs import count_from
from gxpo.environments.tasks.in_memory import plain_row, plain_rows
from gxpo.environments.tasks.listed import ListedTasks
from gxpo.environments.tasks.rows import Columns, tasks_of
from gxpo.environments.tasks.source import check_options
from gxpo.parts.functions import place_of
from gxpo.parts.protocols import Task

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

BASES = ("GeneratedTasks", "ListedTasks", "TaskFile", "Arithmetic", "Countdown", "ReasoningGym", "Dataset")


def is_source(given: Any) -> bool:
    """Whether an object or a class has what a task source must have."""
    return callable(getattr(given, "draw", None)) and callable(getattr(given, "held_out", None))


def names_source(name: str) -> bool:
    """Whether `file.py:NAME` is a task source or a function that returns rows, by the text of the file; else a class
    in it is an environment's."""
    where, _, wanted = name.rpartition(":")
    if not where.endswith(".py") or not Path(where).expanduser().is_file():
        return False
    try:
        body = ast.parse(Path(where).expanduser().read_bytes()).body
    except (SyntaxError, ValueError):
        return False
    classes = {x.name: x for x in body if isinstance(x, ast.ClassDef)}
    return any(isinstance(x, ast.FunctionDef) and x.name == wanted for x in body) or _draws(wanted, classes)


def _draws(name: str, classes: Mapping[str, ast.ClassDef]) -> bool:
    if name not in classes:
        return name in BASES
    own = classes[name]
    methods = {x.name for x in own.body if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef))}
    bases = [b.attr if isinstance(b, ast.Attribute) else getattr(b, "id", "") for b in own.bases]
    return "draw" in methods or any(base != name and _draws(base, classes) for base in bases)


def from_file(name: str, *, seed: int, options: Mapping[str, Any], per_step: int) -> OwnTasks | OwnRows:
    """The source that `file.py:NAME` names, loaded in this process."""
    where, _, wanted = name.rpartition(":")
    try:
        found = object_at(f"{Path(where).expanduser()}:{wanted}", always=True)
    except Unusable as error:
        raise TaskError(f"task {name!r}: {error}") from error
    return adopt(found, name, seed=seed, options=options, per_step=per_step)


def adopt(given: Any, name: str, *, seed: int, options: Mapping[str, Any], per_step: int) -> OwnTasks | OwnRows:
    """A source of what the user gave: an instance, or a class or function, which is called with `options` and, where it
    has such parameters, `seed` and `per_step`."""
    options = dict(options)
    made = given
    if isinstance(given, type) or not is_source(given):
        if not callable(given) or (isinstance(given, type) and not is_source(given)):
            kind = f"class {given.__name__}" if isinstance(given, type) else type(given).__name__
            raise TaskError(f"task {name!r}: {kind} has no draw(n, step) and held_out(n)")
        rows = {} if isinstance(given, type) else {k: options.pop(k) for k in OwnRows.options if k in options}
        made = _called(given, name, options, {"seed": seed, "per_step": per_step})
        if not is_source(made):
            return OwnRows(name, made, seed, per_step, rows)
    elif options:
        raise TaskError(f"task {name!r} is an object, which takes no tasks.options: {', '.join(options)}")
    return OwnTasks(made, name)


def _called(make: Callable[..., Any], name: str, options: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    try:
        asked = inspect.signature(make).parameters
        given = {k: v for k, v in known.items() if k in asked} | dict(options)
        inspect.signature(make).bind(**given)
    except (TypeError, ValueError) as error:
        raise TaskError(f"task {name!r} can't be made: {error} (tasks.options gives its arguments)") from error
    try:
        return make(**given)
    except GxpoError:
        raise
    except Exception as error:
        raise TaskError(f"task {name!r}: {described(error)}") from error


class OwnRows(ListedTasks):
    """Rows that a function of the user's returned; options as of a file of tasks."""

    options: Mapping[str, Any] = {"held_out_fraction": (float, int), **Columns.options}

    def __init__(self, name: str, rows: Any, seed: int, per_step: int, options: Mapping[str, Any]) -> None:
        check_options(name, options, self.options)
        self.name, self.seed, self.per_step = name, seed, per_step
        columns, rest = Columns.among(options)
        columns.check(name)
        stem = Path(name.rpartition(":")[0]).stem
        label = f"task {name!r}"
        listed = [(f"{label}, row {i}", f"{stem}/{i}", row) for i, row in enumerate(plain_rows(rows, label))]
        self.split(tasks_of(listed, columns, label), None, rest.get("held_out_fraction", 0.1))


class OwnTasks:
    """A user's source with what it may leave out: `observe`, `state_dict`, `load_state_dict`, `name`, ids of tasks.

    Its `draw(n, step)` and `held_out(n)` give `Task`s, or dicts as rows of a file; both are checked, and so is
    `training`, the list of all its tasks where it has one. Whatever else it has (`scorer`, `reward_default`,
    `worked_example`, `answer`) is found here too.
    """

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self.name = inner, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def draw(self, n: int, step: int) -> list[Task]:
        """`n` training tasks of a step."""
        tasks = self._tasks("draw", n, step)
        if len(tasks) != n:
            raise TaskError(f"task {self.name!r}: draw({n}, {step}) gave {len(tasks)} tasks; it gives as many as asked")
        return tasks

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks."""
        tasks = self._tasks("held_out", n)[:n]
        if not tasks and n:
            raise TaskError(f"task {self.name!r}: held_out({n}) gave no task; give at least one, for evaluations")
        return tasks

    @property
    def training(self) -> list[Task]:
        """All training tasks, where the source has a list of them: a task sampler draws from it."""
        label = f"task {self.name!r}: training"
        return [self._task(x, f"{label}, item {i}") for i, x in enumerate(self._inner.training)]

    def count_from(self, step: int) -> None:
        """Let the epochs of the source begin at this step, if it has any."""
        count_from(self._inner, step)

    def observe(self, forest: Forest) -> None:
        """Tells the source what came of its tasks, if it asks."""
        if hasattr(self._inner, "observe"):
            self._inner.observe(forest)

    def state_dict(self) -> dict[str, Any]:
        return self._inner.state_dict() if hasattr(self._inner, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if hasattr(self._inner, "load_state_dict"):
            self._inner.load_state_dict(state)

    def _tasks(self, method: str, *arguments: int) -> list[Task]:
        label = f"task {self.name!r}: {method}"
        try:
            raw_tasks = getattr(self._inner, method)(*arguments)
            if isinstance(raw_tasks, (str, bytes, Mapping)) or not isinstance(raw_tasks, Iterable):
                place = place_of(getattr(self._inner, method))
                raise TaskError(f"{label}{place} gave {type(raw_tasks).__name__}; it has to give a list of tasks")
            raw_tasks = list(raw_tasks)
        except GxpoError:
            raise
        except Exception as error:
            raise TaskError(f"{label}: {described(error)}") from error
        return [self._task(x, f"{label}, item {i}") for i, x in enumerate(raw_tasks)]

    def _task(self, given: Any, where: str) -> Task:
        if isinstance(given, Task):
            if not isinstance(given.id, str) or not given.id:
                raise TaskError(f"{where}: its id must be a text that is not empty, not {given.id!r}")
            return given
        row = plain_row(given, where)
        content = json.dumps(row.get("prompt"), sort_keys=True)
        name = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        (task,) = tasks_of([(where, name, row)], Columns(), where)
        return task
