"""Calls of functions in users' files: arguments, variables in the order of the code, and result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from gxpo.base.usercode import is_users
from gxpo.forest.forest import Forest
from gxpo.parts.functions import users_code

MOST_CALLS = 8  # calls that are recorded, of all functions together
MOST_VALUES = 12  # of a tensor on no axis, such as one of groups


@dataclass
class Variable:
    """A variable of a call.

    role    "in": an argument, "then": assigned in the function, "out": what it returned
    axis    "R", "S" or "P" where it has one value for each; "": `text` is all there is
    values  [n] float64, nan where there is none
    """

    name: str
    role: str
    axis: str = ""
    values: Tensor | None = None
    text: str = ""


@dataclass
class Call:
    """A call of a user's function: its name and place, and its variables."""

    title: str
    variables: list[Variable] = field(default_factory=list)


@contextmanager
def recorded_calls(forest: Forest, *parts: Any, credit: Tensor | None = None) -> Iterator[list[Call]]:
    """Context manager: record the calls of functions in users' files, the first `MOST_CALLS` that end.

    forest  the rollouts that the functions are given, whose sizes decide on which axis a tensor lies
    parts   nothing is recorded, or slowed down, where all of them are gxpo's own
    credit  [P] of these rollouts: a surrogate is given the trained tokens where it is not 0
    """
    calls: list[Call] = []
    if all(users_code(part) is None for part in parts):
        yield calls
        return
    trained_P = forest.path_trainable
    subsets = [trained_P, *([] if credit is None else [trained_P & (credit != 0)])]
    axes = _Axes(forest, [mask.nonzero().squeeze(1) for mask in subsets])
    arguments: dict[int, list[tuple[str, Any]]] = {}  # of the calls that are under way, by frame

    def watch(frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or code.co_name.startswith("<") or not is_users(code.co_filename):
            return
        if event == "call":
            arguments[id(frame)] = [(n, frame.f_locals[n]) for n in code.co_varnames[: _count(frame)]]
        elif (argument_pairs := arguments.pop(id(frame), None)) is not None and len(calls) < MOST_CALLS:
            title = f"{code.co_name} ({os.path.basename(code.co_filename)} line {code.co_firstlineno})"
            # arguments as they were given: the function may have assigned to their names since
            names = {n for n, _ in argument_pairs}
            local_pairs = [(n, x) for n, x in frame.f_locals.items() if n not in names]
            rows = [("in", argument_pairs), ("then", local_pairs), ("out", [("result", result)])]
            variables = [_variable(n, role, x, axes) for role, pairs in rows for n, x in _with_fields(pairs)]
            call = Call(title, [v for v in variables if v is not None])
            # a loss is evaluated again for its figures: the same call is shown once
            if not any(_is_same(call, earlier) for earlier in calls):
                calls.append(call)

    previous_profiler = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(previous_profiler)


def _count(frame: FrameType) -> int:
    """Return the number of a function's parameters, `*args` and `**options` included."""
    code = frame.f_code
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)


def _with_fields(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield named values; of a gxpo dataclass of columns, such as `Entries`, its fields in its place."""
    for name, value in pairs:
        is_columns = is_dataclass(value) and type(value).__name__ in ("Entries", "PolicyTokens")
        yield from (
            ((f"{name}.{f.name}", getattr(value, f.name)) for f in fields(value)) if is_columns else [(name, value)]
        )


def _variable(name: str, role: str, value: Any, axes: _Axes) -> Variable | None:
    """Describe a value; None for what is no data, such as the forest, a module or a function."""
    if isinstance(value, Tensor):
        axis, values = axes.place(value.detach())
        if axis:
            return Variable(name, role, axis, values)
        is_short = value.ndim <= 1 and 0 < value.numel() <= MOST_VALUES and not value.is_complex()
        numbers = ", ".join(f"{x:.8g}" for x in value.detach().reshape(-1).tolist()) if is_short else ""
        return Variable(name, role, text=numbers or f"shape {tuple(value.shape)}")
    if value is None and role == "in" and "." in name:
        return None  # a column that the run does not have
    if value is None or isinstance(value, (bool, int, float, str)):
        return Variable(name, role, text=repr(value)[:200])
    if isinstance(value, (tuple, list)) and role == "out":
        return Variable(name, role, text=f"{type(value).__name__} of {len(value)}")
    # options of `**NAME` are settings that a reader needs
    if (
        isinstance(value, Mapping)
        and role == "in"
        and all(isinstance(x, (bool, int, float, str)) for x in value.values())
    ):
        return Variable(name, role, text=", ".join(f"{k}={v}" for k, v in value.items()) or "none")
    return None


def _is_same(call: Call, second: Call) -> bool:
    """Return True if two calls are of one function with equal values."""
    return (
        call.title == second.title
        and len(call.variables) == len(second.variables)
        and all(
            (a.name, a.role, a.axis, a.text) == (b.name, b.role, b.axis, b.text)
            and (
                a.values is b.values
                or (a.values is not None and b.values is not None and _has_equal_values(a.values, b.values))
            )
            for a, b in zip(call.variables, second.variables, strict=True)
        )
    )


def _has_equal_values(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(nan=0.5), b.nan_to_num(nan=0.5))


@dataclass
class _Axes:
    """Sizes of the axes on which a tensor may lie: those of the rollouts, and subsets of their tokens, as indices."""

    forest: Forest
    subsets: list[Tensor]

    def place(self, value: Tensor) -> tuple[str, Tensor | None]:
        """Return the axis on which a tensor has one value for each row, and these values; "" for none."""
        if value.ndim != 1 or value.is_complex() or not len(value):
            return "", None
        values = value.to(torch.float64).clone()
        sizes = {"R": self.forest.n_trajectories, "S": self.forest.n_steps, "P": self.forest.n_entries}
        for axis, size in sizes.items():
            if len(values) == size:
                return axis, values
        for rows in self.subsets:
            if len(values) == len(rows):
                blank = torch.full((self.forest.n_entries,), torch.nan, dtype=torch.float64)
                return "P", blank.index_copy(0, rows, values)
        return "", None
