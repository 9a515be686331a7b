"""Calls of functions in users' files: arguments, variables in the order of the code, and result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from gxpo.base.usercode import is_users
from gxpo.forest.forest import Forest
from gxpo.parts.functions import users_code

MOST_CALLS = 8  # calls that are recorded, of all functions together
AXES = ("R", "S", "P")


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
def recorded_calls(forest: Forest, *parts: Any) -> Iterator[list[Call]]:
    """Context manager: record the calls of functions in users' files, the first `MOST_CALLS` that end.

    forest  the rollouts that the functions are given, whose sizes decide on which axis a tensor lies
    parts   nothing is recorded, or slowed down, where all of them are gxpo's own
    """
    calls: list[Call] = []
    if all(users_code(part) is None for part in parts):
        yield calls
        return
    arguments: dict[int, list[tuple[str, Any]]] = {}  # of the calls that are under way, by frame

    def watch(frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or code.co_name.startswith("<") or not is_users(code.co_filename):
            return
        if event == "call":
            arguments[id(frame)] = [(n, frame.f_locals[n]) for n in code.co_varnames[: _count(frame)]]
        elif (given := arguments.pop(id(frame), None)) is not None and len(calls) < MOST_CALLS:
            title = f"{code.co_name} ({os.path.basename(code.co_filename)} line {code.co_firstlineno})"
            # arguments as they were given: the function may have assigned to their names since
            names = {n for n, _ in given}
            assigned = [(n, x) for n, x in frame.f_locals.items() if n not in names]
            rows = [("in", given), ("then", assigned), ("out", [("result", result)])]
            variables = [_variable(n, role, x, forest) for role, pairs in rows for n, x in pairs]
            calls.append(Call(title, [v for v in variables if v is not None]))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def _count(frame: FrameType) -> int:
    """Return the number of a function's parameters, `*args` and `**options` included."""
    code = frame.f_code
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)


def _variable(name: str, role: str, value: Any, forest: Forest) -> Variable | None:
    """Describe a value; None for what is no data, such as the forest, a module or a function."""
    if isinstance(value, Tensor):
        axis, values = _on_axis(value.detach(), forest)
        if axis:
            return Variable(name, role, axis, values)
        text = f"{value.item():.8g}" if value.numel() == 1 and not value.is_complex() else f"shape {tuple(value.shape)}"
        return Variable(name, role, text=text)
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


def _on_axis(value: Tensor, forest: Forest) -> tuple[str, Tensor | None]:
    """Return the axis on which a tensor has one value for each row, and these values; "" for none."""
    if value.ndim != 1 or value.is_complex() or not len(value):
        return "", None
    values = value.to(torch.float64).clone()
    sizes = {"R": forest.n_trajectories, "S": forest.n_steps, "P": forest.n_entries}
    for axis in AXES:
        if len(values) == sizes[axis]:
            return axis, values
    # functions of tokens may be given the trained ones alone
    trained = forest.path_trainable.nonzero().squeeze(1)
    if len(values) == len(trained):
        return "P", torch.full((forest.n_entries,), torch.nan, dtype=torch.float64).index_copy(0, trained, values)
    return "", None
