"""Named columns that weight functions read: those of the forest, scores, the advantage, and signals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.algorithms.weighting.base import WeightPart
from gxpo.forest.grouped import begins_of
from gxpo.parts import functions, named_columns
from gxpo.parts.functions import Formula, signature

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals

SCORES = "gxpo.algorithms.weighting.scores"


class Columns(named_columns.Columns):
    """Arguments of weight functions by parameter name, per trajectory (R) or per trained token (of P).

    credited  only the trained tokens with a non-zero advantage
    x      the weight's own score;   scope  ids of what is compared: "batch", "group" or "trajectory"
    counts what enters statistics: compared trajectories that have trained tokens, and their tokens; in the scope of
           one trajectory, each token enters its own
    """

    computed = ("x", "scope", "counts", "credit", "moved", "place", "step", "columns")  # not columns of the forest

    def __init__(
        self,
        forest: Forest,
        credit: Tensor,
        signals: Signals,
        scope: str = "batch",
        step: int = 0,
        credited: bool = False,
    ) -> None:
        super().__init__(forest, signals)
        self.credit, self.scope, self.step, self.credited = credit, scope, step, credited

    @cached_property
    def entries(self) -> Tensor:
        trainable_P = self.forest.path_trainable
        return (trainable_P & (self.credit != 0) if self.credited else trainable_P).nonzero().squeeze(1)

    def of(self, name: str, axis: str) -> Any:
        """Column or score by name, on the axis."""
        # scores shadow columns: a function that reads `size` gets the score of that name
        if name in functions.functions_in(SCORES):
            return self.score_values(functions.functions_in(SCORES)[name], axis)
        if name == "columns":
            return self
        if name == "step":
            return self.step
        if name == "scope":
            return self.of(self.scope, axis)
        if name == "counts":
            # compared with its own trajectory alone, a token of any trajectory counts
            enters_own_scope = self.scope == "trajectory"
            return self.broadcast(self.of("acts", "R"), axis) | enters_own_scope
        if name == "place":
            begins = begins_of(self.owner, self.forest.n_trajectories)
            return torch.arange(len(self.owner)) - begins[self.owner]
        if name == "moved":
            has_credit_R = torch.zeros(self.forest.n_trajectories, dtype=torch.bool)
            has_credit_R[self.owner[self.credit[self.entries] != 0]] = True
            return self.broadcast(has_credit_R, axis)
        if name == "credit":
            return self.mean(self.credit[self.entries]) if axis == "R" else self.credit[self.entries]
        return super().of(name, axis)

    def score_values(self, score: Any, axis: str, options: Mapping[str, Any] | None = None) -> Tensor:
        """Evaluate a score (a function, or the name of a column) on the axis, with the options that it takes."""
        if not callable(score):
            return self.of(score, axis)
        # a score of trajectories is computed there and broadcast; one of tokens is averaged for a trajectory
        score_axis = getattr(score, "axis", axis)
        score_options = {k: v for k, v in (options or {}).items() if k in signature(score).options}
        value: Any = score(*self.arguments_of(score, score_axis), **score_options)
        return self.broadcast(value, axis) if score_axis == "R" else self.mean(value) if axis == "R" else value


class ScoreWeight(Formula, WeightPart):
    """Base class of weights that are a function of a score; `functions` names the score and the function."""

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return Columns.needs(self._column_names)

    @property
    def requires(self) -> tuple[str, ...]:  # type: ignore[override]
        return Columns.requires(self._column_names)

    @property
    def _column_names(self) -> tuple[str, ...]:
        """Columns and signals read, those of nested scores too; the second function's first column is the score."""
        score, function = (getattr(self, name) for name in self.functions)
        return tuple(dict.fromkeys(_names_read(score, *signature(function).columns[1:])))


def _names_read(*names: Any) -> list[str]:
    """Columns and signals behind these names: scores are followed to what they read, in turn."""
    scores = functions.functions_in(SCORES)
    names_read: list[str] = []
    for name in names:
        score = name if callable(name) else scores.get(name)
        names_read += [name.removeprefix("mean_")] if score is None else _names_read(*signature(score).columns)
    return names_read
