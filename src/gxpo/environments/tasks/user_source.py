"""Task sources of the user's: an object or class with `draw` and `held_out`, or a function that returns rows."""

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


def is_source(candidate: Any) -> bool:
    """Return True if an object or a class has the methods of a task source, `draw` and `held_out`."""
    return callable(getattr(candidate, "draw", None)) and callable(getattr(candidate, "held_out", None))


def names_source(name: str) -> bool:
    """Return True if `file.py:NAME` is a task source or a function that returns rows, and not an environment's class.

    Decided by the text of the file, whose code is not run.
    """
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py") or not Path(path).expanduser().is_file():
        return False
    try:
        body = ast.parse(Path(path).expanduser().read_bytes()).body
    except (SyntaxError, ValueError):
        return False
    classes = {x.name: x for x in body if isinstance(x, ast.ClassDef)}
    return any(isinstance(x, ast.FunctionDef) and x.name == attribute for x in body) or _draws(attribute, classes)


def _draws(name: str, classes: Mapping[str, ast.ClassDef]) -> bool:
    # a base that is imported can only be told by its name
    if name not in classes:
        return name in BASES
    node = classes[name]
    methods = {x.name for x in node.body if isinstance(x, (ast.FunctionDef, ast.AsyncFunctionDef))}
    bases = [b.attr if isinstance(b, ast.Attribute) else getattr(b, "id", "") for b in node.bases]
    return "draw" in methods or any(base != name and _draws(base, classes) for base in bases)


def from_file(name: str, *, seed: int, options: Mapping[str, Any], per_step: int) -> OwnTasks | OwnRows:
    """Load the source that `file.py:NAME` names, in this process."""
    path, _, attribute = name.rpartition(":")
    try:
        candidate = object_at(f"{Path(path).expanduser()}:{attribute}", always=True)
    except Unusable as error:
        raise TaskError(f"task {name!r}: {error}") from error
    return adopt(candidate, name, seed=seed, options=options, per_step=per_step)


def adopt(candidate: Any, name: str, *, seed: int, options: Mapping[str, Any], per_step: int) -> OwnTasks | OwnRows:
    """Make a source of a user's object: an instance, or a class or function, which is called with `options` and, where
    it has such parameters, `seed` and `per_step`."""
    options = dict(options)
    instance = candidate
    if isinstance(candidate, type) or not is_source(candidate):
        if not callable(candidate) or (isinstance(candidate, type) and not is_source(candidate)):
            kind = f"class {candidate.__name__}" if isinstance(candidate, type) else type(candidate).__name__
            raise TaskError(f"task {name!r}: {kind} has no draw(n, step) and held_out(n)")
        # a function may return rows: names of columns are then options of the source, not arguments
        is_class = isinstance(candidate, type)
        row_options = {} if is_class else {k: options.pop(k) for k in OwnRows.options if k in options}
        instance = _call(candidate, name, options, {"seed": seed, "per_step": per_step})
        if not is_source(instance):
            return OwnRows(name, instance, seed, per_step, row_options)
    elif options:
        raise TaskError(f"task {name!r} is an object, which takes no tasks.options: {', '.join(options)}")
    return OwnTasks(instance, name)


def _call(make: Callable[..., Any], name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """Call a user's class or function with its options and those of `offered` that it has parameters for."""
    # bound first: a TypeError of the call itself would be the user's code, and not a wrong option
    try:
        signature = inspect.signature(make)
        arguments = {k: v for k, v in defaults.items() if k in signature.parameters} | dict(options)
        signature.bind(**arguments)
    except (TypeError, ValueError) as error:
        raise TaskError(f"task {name!r} can't be made: {error} (tasks.options gives its arguments)") from error
    try:
        return make(**arguments)
    except GxpoError:
        raise
    except Exception as error:
        raise TaskError(f"task {name!r}: {described(error)}") from error


class OwnRows(ListedTasks):
    """Tasks from the rows that a user's function returned, with the options of a file of tasks."""

    options: Mapping[str, Any] = {"held_out_fraction": (float, int), **Columns.options}

    def __init__(self, name: str, rows: Any, seed: int, per_step: int, options: Mapping[str, Any]) -> None:
        check_options(name, options, self.options)
        self.name, self.seed, self.per_step = name, seed, per_step
        columns, others = Columns.among(options)
        columns.check(name)
        stem = Path(name.rpartition(":")[0]).stem
        label = f"task {name!r}"
        labelled_rows = [(f"{label}, row {i}", f"{stem}/{i}", row) for i, row in enumerate(plain_rows(rows, label))]
        self.split(tasks_of(labelled_rows, columns, label), None, others.get("held_out_fraction", 0.1))


class OwnTasks:
    """A user's source with defaults for what it may leave out: `observe`, `state_dict`, `load_state_dict`, name, ids.

    Its `draw(n, step)` and `held_out(n)` give `Task`s, or dicts as rows of a file; both are checked, and so is
    `training`, the list of all its tasks if it has one. All other attributes (`scorer`, `reward_default`,
    `worked_example`, `answer`) are those of the user's source.
    """

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self.name = inner, name

    def __getattr__(self, name: str) -> Any:
        # private names are never delegated: pickle and copy ask for them before `_inner` is set
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw the `n` training tasks of a step; TaskError unless the source gives as many."""
        tasks = self._tasks("draw", n, step)
        if len(tasks) != n:
            raise TaskError(f"task {self.name!r}: draw({n}, {step}) gave {len(tasks)} tasks; it gives as many as asked")
        return tasks

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks, at least one."""
        tasks = self._tasks("held_out", n)[:n]
        if not tasks and n:
            raise TaskError(f"task {self.name!r}: held_out({n}) gave no task; give at least one, for evaluations")
        return tasks

    @property
    def training(self) -> list[Task]:
        """All training tasks of a source that has a list of them, for task samplers."""
        label = f"task {self.name!r}: training"
        return [self._task(x, f"{label}, item {i}") for i, x in enumerate(self._inner.training)]

    def count_from(self, step: int) -> None:
        """Set the step at which the epochs of the source begin, if it has any."""
        count_from(self._inner, step)

    def observe(self, forest: Forest) -> None:
        """Pass a step's rollouts on to a source that has `observe`."""
        if hasattr(self._inner, "observe"):
            self._inner.observe(forest)

    def state_dict(self) -> dict[str, Any]:
        return self._inner.state_dict() if hasattr(self._inner, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if hasattr(self._inner, "load_state_dict"):
            self._inner.load_state_dict(state)

    def _tasks(self, method: str, *arguments: int) -> list[Task]:
        """Call a method of the user's that gives tasks, and check them."""
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

    def _task(self, entry: Any, where: str) -> Task:
        if isinstance(entry, Task):
            if not isinstance(entry.id, str) or not entry.id:
                raise TaskError(f"{where}: its id must be a text that is not empty, not {entry.id!r}")
            return entry
        # a row without an id is named by its prompt, so that it has the same id whenever it is drawn
        row = plain_row(entry, where)
        content = json.dumps(row.get("prompt"), sort_keys=True)
        name = hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        (task,) = tasks_of([(where, name, row)], Columns(), where)
        return task
