"""Columns that advantage functions read by parameter name, on the axis of trajectories (R), steps (S) or tokens (P)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from gxpo.algorithms.credit.recursion import next_in
from gxpo.forest import grouped
from gxpo.parts import named_columns
from gxpo.parts.functions import signature

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals

F = TypeVar("F", bound=Callable[..., Any])
CORRECT = named_columns.TRAJECTORY["correct"]
OF_PART = {  # axis, and method of the part
    "state": ("S", "states"),
    "moves": ("", "moves"),
    "advantage": ("R", "of_outcome"),
}
TRAJECTORIES: Mapping[str, Callable[[Forest], Tensor]] = {  # [R], in addition to those of `gxpo.parts.named_columns`
    "rate": lambda forest: grouped.mean(CORRECT(forest), forest.ids("group", axis="R"), forest.compared),
    "replayed": lambda forest: torch.tensor([origin == "replay" for origin in forest.origin], dtype=torch.bool),
}
STEPS: Mapping[str, Callable[[Forest], Tensor]] = {  # [S]
    "trajectory": lambda forest: forest.step_trajectory,
    "following": lambda forest: next_in(forest.step_trajectory),  # the turn after it, -1 none
    "paid": lambda forest: forest.returns(0.0),  # step rewards; the outcome on the last turn where there are none
}
TOKENS: Mapping[str, Callable[[Forest], Tensor]] = {  # [P], all action tokens
    "trajectory": lambda forest: forest.path_trajectory,
    "trainable": lambda forest: forest.path_trainable,
}
STATES = {"state", "moves"}
MADE = {*OF_PART, *TRAJECTORIES, *STEPS, *TOKENS, "forest"}
_ROWS = {"R": "n_trajectories", "S": "n_steps", "P": "n_entries"}


def column(axis: str) -> Callable[[F], F]:
    """Decorator: a function of columns that is itself a column, for the functions of its module.

    axis  "R", "S" or "P" of what it reads and gives; "": what it gives is on none, and it reads columns [R]

    Its keyword-only parameters are options of the part that reads it.
    """

    def mark(function: F) -> F:
        function.axis = axis  # type: ignore[attr-defined]
        return function

    return mark


def read_by(function: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any] | None]]:
    """Columns that a function reads, and those that they are made of; with the functions that make them."""
    for name in signature(function).columns:
        found = inspect.unwrap(function).__globals__.get(name)
        made = found if hasattr(found, "axis") else None
        yield name, made
        if made is not None:
            yield from read_by(made)


def needed(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Signals that a function reads, and what rollouts must carry for it."""
    names = [name for name, made in read_by(function) if made is None]
    states = ("states",) if STATES.intersection(names) else ()
    signals = named_columns.Columns.needs(name for name in names if name not in MADE)
    return signals, (*states, *named_columns.Columns.requires(names))


class Columns:
    """Arguments of advantage functions: columns marked by `column`, those of the part and of `parts.named_columns`,
    signals, and

    forest     the forest itself;   trajectory, following, paid, trainable  see `STEPS` and `TOKENS`
    state      [S] ids of the states, `moves` between them, with the options `state` and `similar`: see `StateKeyed`
    advantage  [R] of the outcome, with the options of `Statistic`
    rate, replayed  [R] success rate of the group's compared trajectories; whether of origin "replay"

    Trajectories' columns are lifted to steps and tokens; signals of tokens that functions of steps read are theirs [P].
    Unlike the columns of weights, those [P] hold all action tokens.
    """

    def __init__(self, forest: Forest, signals: Signals, part: Any, options: Mapping[str, Any]) -> None:
        self.forest, self.signals, self.part, self.options = forest, signals, part, options
        self.of_trajectories = named_columns.Columns(forest, signals)

    def call(self, function: Callable[..., Any], axis: str) -> Any:
        """The function of columns on an axis, with the options that it takes."""
        asked = signature(function)
        options = self.options if asked.passes_on else {name: self.options[name] for name in asked.options}
        own = {name: made for name, made in read_by(function) if made is not None}
        return function(*(self.of(name, axis, own) for name in asked.columns), **options)

    def of(self, name: str, axis: str, own: Mapping[str, Callable[..., Any]]) -> Any:
        """Column or signal by name, on an axis."""
        if name == "forest":
            return self.forest
        if name in own:
            at = own[name].axis  # type: ignore[attr-defined]
            return self.lifted(self.call(own[name], at or "R"), at or axis, axis)
        if name in OF_PART:
            at, method = OF_PART[name]
            return self.lifted(getattr(self.part, method)(self.forest), at or axis, axis)
        if name in TRAJECTORIES:
            return self.lifted(TRAJECTORIES[name](self.forest), "R", axis)
        direct = {"S": STEPS, "P": TOKENS}.get(axis, {})
        if name in direct:
            return direct[name](self.forest)
        if axis != "R" and name not in named_columns.TRAJECTORY and not name.startswith("mean_"):
            return self.lifted(self.signals[name], self.axis_of(name, axis), axis)
        return self.lifted(self.of_trajectories.of(name, "R"), "R", axis)

    def axis_of(self, name: str, axis: str) -> str:
        """Axis of a signal; of a plain mapping's the one whose number of rows it has, `axis` before others."""
        known = getattr(self.signals, "axis", None)
        if known is not None:
            return known(name)
        rows = len(self.signals[name])
        return next(a for a in (axis, "P", "S", "R") if getattr(self.forest, _ROWS[a]) == rows)

    def lifted(self, x: Any, at: str, axis: str) -> Any:
        """A column of a coarser axis on a finer one; of a finer one, as it is."""
        if "RSP".index(at) >= "RSP".index(axis):
            return x
        return x.index_select(0, self.forest.step_trajectory) if axis == "S" else self.forest.to_path(x, at)
