"""Named columns that weight functions read: trajectory and token columns, scores, and signals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo import functions
from gxpo.errors import GxpoError, MissingSignal
from gxpo.functions import Formula, signature
from gxpo.trees import begins_of
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

SCORES = "gxpo.weighting.scores"
HELD = ("proximal_logprob", "behaviour_logprob")  # signals that there always are
MAY_LACK = ("teacher_entropy",)  # nan: none; of another signal it is an error at a token that is trained
REQUIRES = {"label": "segments", "noise_scale": "latents"}
BRINGS = {
    "label": "set segment=spans and segment.patterns to what is to be labelled",
    "noise_scale": "sample them with rollout denoise or denoise_tree",
}

TRAJECTORY: Mapping[str, Callable[[Forest], Tensor]] = {  # [R]
    "group": lambda forest: forest.ids("group", axis="R"),
    "batch": lambda forest: torch.zeros(forest.n_trajectories, dtype=torch.int64),
    "compared": lambda forest: forest.compared,
    "acts": lambda forest: forest.compared & (forest.lengths() > 0),
    "outcome": lambda forest: forest.outcome,
    "success": lambda forest: forest.success,
    # the verdict, or, where a trajectory has none, an outcome above 0
    "correct": lambda forest: torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0),
    "complete": lambda forest: ~forest.truncated,
    "length": lambda forest: forest.lengths(),
    "shown": lambda forest: torch.tensor([x == "demonstration" for x in forest.origin], dtype=torch.bool),
}
TOKEN: Mapping[str, Callable[[Forest], Tensor]] = {  # [P]
    "trajectory": lambda forest: forest.path_trajectory,
    "version": lambda forest: forest.to_path(forest.policy_version, "N"),
    "segment": lambda forest: forest.segment[forest.path_token],
    "token": lambda forest: _ids(forest)[forest.path_token],
    "label": lambda forest: _extra(forest, "label"),
    "noise_scale": lambda forest: _extra(forest, "noise_scale"),
}
MADE = ("x", "scope", "counts", "credit", "moved", "place", "step", "columns")  # of the weight, the credit and the run


def _ids(forest: Forest) -> Tensor:
    forest.need_ids("a weight that compares tokens")
    return forest.token


def _extra(forest: Forest, name: str) -> Tensor:
    if name not in forest.extras:
        raise GxpoError(f"a weight reads extras[{name!r}], and these rollouts have none: {BRINGS[name]}")
    return forest.extras[name][forest.path_token]


class Columns:
    """Arguments of weight functions by parameter name, per trajectory (R) or per trained token (of P).

    credited  only the trained tokens with a non-zero advantage
    x      the weight's own score;   scope  ids of what is compared: "batch", "group" or "trajectory"
    counts what enters statistics: compared trajectories that have trained tokens, and their tokens; in the scope of
           one trajectory, each token enters its own
    mean_NAME  [R] mean over a trajectory's trained tokens
    """

    def __init__(
        self,
        forest: Forest,
        credit: Tensor,
        signals: Signals,
        scope: str = "batch",
        step: int = 0,
        credited: bool = False,
    ) -> None:
        self.forest, self.credit, self.signals, self.scope, self.step = forest, credit, signals, scope, step
        self.credited = credited

    @cached_property
    def entries(self) -> Tensor:
        """Indices into P of the trained tokens; token columns hold these."""
        where = self.forest.path_trainable
        return (where & (self.credit != 0) if self.credited else where).nonzero().squeeze(1)

    @cached_property
    def owner(self) -> Tensor:
        return self.forest.path_trajectory[self.entries]

    def given(self, function: Callable[..., Any], axis: str, *first: Tensor) -> list[Any]:
        """Positional arguments for a function, by its parameter names; the first of them are passed in."""
        return [*first, *(self.of(name, axis) for name in signature(function).columns[len(first) :])]

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
        if name in TRAJECTORY:
            return self.lifted(TRAJECTORY[name](self.forest), axis)
        if name == "trajectory" and axis == "R":
            return torch.arange(self.forest.n_trajectories)
        if name.startswith("mean_"):
            return self.lifted(self.mean(self.of(name[5:], "P")), axis)
        if name not in TOKEN and name != "credit":
            return self.signal(name, axis)
        x = self.credit if name == "credit" else TOKEN[name](self.forest)
        return self.mean(x[self.entries]) if axis == "R" else x[self.entries]

    def scored(self, score: Any, axis: str, options: Mapping[str, Any] | None = None) -> Tensor:
        """Evaluate a score (a function, or the name of a column) on the axis, with the options that it takes."""
        if not callable(score):
            return self.of(score, axis)
        own = getattr(score, "axis", axis)
        stated = {k: v for k, v in (options or {}).items() if k in signature(score).options}
        value: Any = score(*self.given(score, own), **stated)
        return self.lifted(value, axis) if own == "R" else self.mean(value) if axis == "R" else value

    def lifted(self, x: Tensor, axis: str) -> Tensor:
        return x if axis == "R" else x[self.owner]

    def mean(self, x: Tensor) -> Tensor:
        """Mean over each trajectory's trained tokens, [R] float64; 0 where it has none."""
        n = self.forest.n_trajectories
        total = torch.zeros(n, dtype=torch.float64).index_add_(0, self.owner, x.to(torch.float64))
        return total / torch.bincount(self.owner, minlength=n).clamp_min(1)

    def signal(self, name: str, axis: str) -> Tensor:
        value, known = self.signals[name], getattr(self.signals, "axis", None)
        own = axis if known is None else known(name)
        if own == "R":
            return self.lifted(value, axis)
        value = value[self.entries]
        if name not in MAY_LACK and (missing := int(value.isnan().sum())):
            raise MissingSignal(f"{name} is nan for {missing} of {len(value)} trainable tokens")
        return self.mean(value) if axis == "R" else value


class Scored(Formula, WeightPart):
    """Base class of weights that are a function of a score; `functions` names the score and the function."""

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        known = (*TRAJECTORY, *TOKEN, *MADE, *HELD)
        return tuple(name for name in self._read if name not in known)

    @property
    def requires(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(REQUIRES[name] for name in self._read if name in REQUIRES)

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
