"""Named columns of a forest that functions read by the names of their parameters, and signals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gxpo.base.errors import GxpoError, MissingSignal
from gxpo.parts.functions import signature

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals

HELD = ("proximal_logprob", "behaviour_logprob")  # signals that there always are
MAY_LACK = ("teacher_entropy",)  # nan: none; of another signal it is an error at a token that is trained
REQUIRES = {"label": "segments", "noise_scale": "latents"}
BRINGS = {
    "label": "set segment=spans and segment.patterns to what is to be labelled",
    "noise_scale": "sample them with rollout denoise or denoise_tree",
    "unmasked_at": "sample them with a masked model",
}

TRAJECTORY: Mapping[str, Callable[[Forest], Tensor]] = {  # [R]
    "group": lambda forest: forest.ids("group", axis="R"),
    "batch": lambda forest: torch.zeros(forest.n_trajectories, dtype=torch.int64),
    "compared": lambda forest: forest.compared,
    "where": lambda forest: forest.compared,
    "acts": lambda forest: forest.compared & (forest.lengths() > 0),
    "outcome": lambda forest: forest.outcome,
    "success": lambda forest: forest.success,
    # the verdict, or, where a trajectory has none, an outcome above 0
    "correct": lambda forest: torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0),
    "complete": lambda forest: ~forest.truncated,
    "length": lambda forest: forest.lengths(),
    "shown": lambda forest: torch.tensor([x == "demonstration" for x in forest.origin], dtype=torch.bool),
    "tempered": lambda forest: torch.tensor([x == "tempered" for x in forest.origin], dtype=torch.bool),
}
TOKEN: Mapping[str, Callable[[Forest], Tensor]] = {  # [P]
    "trajectory": lambda forest: forest.path_trajectory,
    "version": lambda forest: forest.to_path(forest.policy_version, "N"),
    "segment": lambda forest: forest.segment[forest.path_token],
    "token": lambda forest: _ids(forest)[forest.path_token],
    "label": lambda forest: _extra(forest, "label"),
    "noise_scale": lambda forest: _extra(forest, "noise_scale"),
    "unmasked_at": lambda forest: _extra(forest, "unmasked_at"),
}


def _ids(forest: Forest) -> Tensor:
    forest.need_ids("a function that compares tokens")
    return forest.token


def _extra(forest: Forest, name: str) -> Tensor:
    if name not in forest.extras:
        raise GxpoError(f"a function reads extras[{name!r}], and these rollouts have none: {BRINGS[name]}")
    return forest.extras[name][forest.path_token]


class Columns:
    """Arguments of functions by parameter name, per trajectory (R) or per trained token (of P).

    mean_NAME  [R] mean over a trajectory's trained tokens
    """

    computed: ClassVar[tuple[str, ...]] = ()  # names that a subclass computes from what it is given

    def __init__(self, forest: Forest, signals: Signals) -> None:
        self.forest, self.signals = forest, signals

    @cached_property
    def entries(self) -> Tensor:
        """Indices into P of the trained tokens; token columns hold these."""
        return self.forest.path_trainable.nonzero().squeeze(1)

    @cached_property
    def owner(self) -> Tensor:
        return self.forest.path_trajectory[self.entries]

    @classmethod
    def needs(cls, names: Iterable[str]) -> tuple[str, ...]:
        """Select the names that a signal part has to provide, of those that functions read."""
        available = (*TRAJECTORY, *TOKEN, *HELD, *cls.computed)
        return tuple(
            dict.fromkeys(signal_name for name in names if (signal_name := name.removeprefix("mean_")) not in available)
        )

    @staticmethod
    def requires(names: Iterable[str]) -> tuple[str, ...]:
        """Requirements on rollouts that follow from the names that functions read."""
        return tuple(REQUIRES[name] for name in names if name in REQUIRES)

    def arguments_of(self, function: Callable[..., Any], axis: str, *first: Tensor) -> list[Any]:
        """Positional arguments for a function, by its parameter names; the first of them are passed in."""
        return [*first, *(self.of(name, axis) for name in signature(function).columns[len(first) :])]

    def of(self, name: str, axis: str) -> Any:
        """Column or signal by name, on the axis."""
        # a column of trajectories is repeated for each of its tokens where a function reads tokens
        if name in TRAJECTORY:
            return self.broadcast(TRAJECTORY[name](self.forest), axis)
        if name == "trajectory" and axis == "R":
            return torch.arange(self.forest.n_trajectories)
        # before the tables of columns: `mean_x` exists for every x
        if name.startswith("mean_"):
            return self.broadcast(self.mean(self.of(name[5:], "P")), axis)
        if name not in TOKEN:
            return self.signal(name, axis)
        x = TOKEN[name](self.forest)[self.entries]
        return self.mean(x) if axis == "R" else x

    def broadcast(self, x: Tensor, axis: str) -> Tensor:
        """Repeat a column [R] for each trained token, or return it as it is on axis R."""
        return x if axis == "R" else x[self.owner]

    def mean(self, x: Tensor) -> Tensor:
        """Mean over each trajectory's trained tokens, [R] float64; 0 where it has none."""
        n = self.forest.n_trajectories
        total = torch.zeros(n, dtype=torch.float64).index_add_(0, self.owner, x.to(torch.float64))
        return total / torch.bincount(self.owner, minlength=n).clamp_min(1)

    def signal(self, name: str, axis: str) -> Tensor:
        value, axis_of = self.signals[name], getattr(self.signals, "axis", None)
        # a plain mapping of signals has no axes: its values are taken to be on the axis that is asked for
        signal_axis = axis if axis_of is None else axis_of(name)
        if signal_axis == "R":
            return self.broadcast(value, axis)
        # a nan would pass silently into every mean below; it means that nobody recorded the column
        value = value[self.entries]
        if name not in MAY_LACK and (missing := int(value.isnan().sum())):
            hint = ": record `logprob` for them" if name == "behaviour_logprob" else ""
            raise MissingSignal(f"{name} is nan for {missing} of {len(value)} trainable tokens{hint}")
        return self.mean(value) if axis == "R" else value
