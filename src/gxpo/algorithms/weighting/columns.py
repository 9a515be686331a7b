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

    made = ("x", "scope", "counts", "credit", "moved", "place", "step", "columns")  # of the weight, credit, run

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
        where = self.forest.path_trainable
        return (where & (self.credit != 0) if self.credited else where).nonzero().squeeze(1)

    def of(self, name: str, axis: str) -> Any:
        """Column or score by name, on the axis."""
        if name in functions.known(SCORES):
            return self.scored(functions.known(SCORES)[name], axis)
        if name == "columns":
            return self
        if name == "step":
            return self.step
        if name == "scope":
            return self.of(self.scope, axis)
        if name == "counts":
            alone = self.scope == "trajectory"
            return self.lifted(self.of("acts", "R"), axis) | alone
        if name == "place":
            begins = begins_of(self.owner, self.forest.n_trajectories)
            return torch.arange(len(self.owner)) - begins[self.owner]
        if name == "moved":
            out = torch.zeros(self.forest.n_trajectories, dtype=torch.bool)
            out[self.owner[self.credit[self.entries] != 0]] = True
            return self.lifted(out, axis)
        if name == "credit":
            return self.mean(self.credit[self.entries]) if axis == "R" else self.credit[self.entries]
        return super().of(name, axis)

    def scored(self, score: Any, axis: str, options: Mapping[str, Any] | None = None) -> Tensor:
        """Evaluate a score (a function, or the name of a column) on the axis, with the options that it takes."""
        if not callable(score):
            return self.of(score, axis)
        own = getattr(score, "axis", axis)
        stated = {k: v for k, v in (options or {}).items() if k in signature(score).options}
        value: Any = score(*self.given(score, own), **stated)
        return self.lifted(value, axis) if own == "R" else self.mean(value) if axis == "R" else value


class Scored(Formula, WeightPart):
    """Base class of weights that are a function of a score; `functions` names the score and the function."""

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return Columns.needs(self._read)

    @property
    def requires(self) -> tuple[str, ...]:  # type: ignore[override]
        return Columns.requires(self._read)

    @property
    def _read(self) -> tuple[str, ...]:
        """Columns and signals, also those that scores are made of; the second function's first column is the score."""
        score, function = (getattr(self, name) for name in self.functions)
        return tuple(dict.fromkeys(_read_by(score, *signature(function).columns[1:])))


def _read_by(*names: Any) -> list[str]:
    scores = functions.known(SCORES)
    found: list[str] = []
    for name in names:
        score = name if callable(name) else scores.get(name)
        found += [name.removeprefix("mean_")] if score is None else _read_by(*signature(score).columns)
    return found
