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
COMPUTED = {*OF_PART, *TRAJECTORIES, *STEPS, *TOKENS, "forest"}
_ROWS = {"R": "n_trajectories", "S": "n_steps", "P": "n_entries"}


def column(axis: str) -> Callable[[F], F]:
    """Decorator that makes a function of columns a column itself, for the functions of its module.

    axis  "R", "S" or "P" of the columns that it reads and of its result; "": its result is on none, and it reads [R]

    Its keyword-only parameters are options of the part that reads it.
    """

    def mark(function: F) -> F:
        function.axis = axis  # type: ignore[attr-defined]
        return function

    return mark


def columns_read_by(function: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any] | None]]:
    """Yield the columns that a function reads, and those that these read in turn, with the functions that make them."""
    for name in signature(function).columns:
        # A column of the function's own module goes before all others of its name.
        candidate = inspect.unwrap(function).__globals__.get(name)
        maker = candidate if hasattr(candidate, "axis") else None
        yield name, maker
        if maker is not None:
            yield from columns_read_by(maker)


def needs_and_requires(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Signals that a function reads, and fields that rollouts must carry for it."""
    names = [name for name, maker in columns_read_by(function) if maker is None]
    states = ("states",) if STATES.intersection(names) else ()
    signals = named_columns.Columns.needs(name for name in names if name not in COMPUTED)
    return signals, (*states, *named_columns.Columns.requires(names))


class Columns:
    """Arguments of advantage functions: columns marked by `column`, those of the part and of `parts.named_columns`,
    signals, and

    forest     the forest itself;   trajectory, following, paid, trainable  see `STEPS` and `TOKENS`
    state      [S] ids of the states, `moves` between them, with the options `state` and `min_similarity`: see
               `StateKeyed`
    advantage  [R] of the outcome, with the options of `Statistic`
    rate, replayed  [R] success rate of the group's compared trajectories; whether of origin "replay"

    Trajectories' columns are lifted to steps and tokens; signals of tokens that functions of steps read are theirs [P].
    Unlike the columns of weights, those [P] hold all action tokens.
    """

    def __init__(self, forest: Forest, signals: Signals, part: Any, options: Mapping[str, Any]) -> None:
        self.forest, self.signals, self.part, self.options = forest, signals, part, options
        self.of_trajectories = named_columns.Columns(forest, signals)

    def call(self, function: Callable[..., Any], axis: str) -> Any:
        """Call a function of columns on an axis, with the options that it takes."""
        parameters = signature(function)
        options = self.options if parameters.passes_on else {name: self.options[name] for name in parameters.options}
        module_columns = {name: maker for name, maker in columns_read_by(function) if maker is not None}
        return function(*(self.of(name, axis, module_columns) for name in parameters.columns), **options)

    def of(self, name: str, axis: str, module_columns: Mapping[str, Callable[..., Any]]) -> Any:
        """Look up a column or signal by name, on an axis."""
        if name == "forest":
            return self.forest
        # The module's own columns first, then the part's, then those of every advantage, then signals.
        if name in module_columns:
            source_axis = module_columns[name].axis  # type: ignore[attr-defined]
            return self.lift(self.call(module_columns[name], source_axis or "R"), source_axis or axis, axis)
        if name in OF_PART:
            source_axis, method = OF_PART[name]
            return self.lift(getattr(self.part, method)(self.forest), source_axis or axis, axis)
        if name in TRAJECTORIES:
            return self.lift(TRAJECTORIES[name](self.forest), "R", axis)
        # The axis decides between columns of one name: `trajectory` is [S] for steps and [P] for tokens.
        direct = {"S": STEPS, "P": TOKENS}.get(axis, {})
        if name in direct:
            return direct[name](self.forest)
        # A name that is no trajectory's column is a signal on its own axis; means (`mean_...`) are always of [R].
        if axis != "R" and name not in named_columns.TRAJECTORY and not name.startswith("mean_"):
            return self.lift(self.signals[name], self.axis_of(name, axis), axis)
        return self.lift(self.of_trajectories.of(name, "R"), "R", axis)

    def axis_of(self, name: str, axis: str) -> str:
        """Axis of a signal; in a plain mapping the one that has as many rows, `axis` before others."""
        signal_axis = getattr(self.signals, "axis", None)
        if signal_axis is not None:
            return signal_axis(name)
        rows = len(self.signals[name])
        return next(a for a in (axis, "P", "S", "R") if getattr(self.forest, _ROWS[a]) == rows)

    def lift(self, x: Any, source_axis: str, axis: str) -> Any:
        """Broadcast a column of a coarser axis to a finer one; return one of a finer axis unchanged."""
        if "RSP".index(source_axis) >= "RSP".index(axis):
            return x
        return x.index_select(0, self.forest.step_trajectory) if axis == "S" else self.forest.to_path(x, source_axis)
