"""Advantages that are pure functions of per-trajectory columns: how a function becomes a part of `credit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo import grouped, named_columns
from gxpo.credit.base import CreditPart
from gxpo.credit.relative import Statistic
from gxpo.definition import kind_of
from gxpo.functions import FunctionPart, signature
from gxpo.registry import of_function

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


class Columns(named_columns.Columns):
    """Arguments of advantage functions by parameter name, [R] each: `gxpo.named_columns`, signals, and

    rate    success rate of the group's compared trajectories
    forest  the forest itself
    """

    made = ("rate", "forest")

    def of(self, name: str, axis: str) -> Any:
        if name == "forest":
            return self.forest
        if name == "rate":
            return grouped.mean(self.of("correct", axis), self.of("group", axis), self.of("compared", axis))
        return super().of(name, axis)


class Advantage(FunctionPart, CreditPart):
    """Advantage that is a function of columns [R], by the names of its parameters; the same for all of a trajectory.

    The function gives [R] float64. What it reads as a signal is in `needs`. A function is one of columns if it states a
    part's name, or if it has a parameter `outcome`, `success`, `correct` or `group` and none named `signals`; any other
    is called with (forest, signals, step). One with a parameter `**statistic` has the options of `Statistic`, too.
    """

    @classmethod
    def facts(cls, function: Callable[..., Any]) -> dict[str, Any]:
        names = signature(function).columns
        return {"needs": Columns.needs(names), "requires": Columns.requires(names)}

    @classmethod
    def bases(cls, function: Callable[..., Any]) -> tuple[type, ...]:
        return (cls, Statistic) if signature(function).passes_on else (cls,)

    @classmethod
    def accepts(cls, function: Callable[..., Any]) -> bool:
        names = signature(function).columns
        return "signals" not in names and not {"outcome", "success", "correct", "group"}.isdisjoint(names)

    @torch.no_grad()
    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        columns = Columns(forest, signals).given(self.function, "R")
        return forest.to_path(self.function(*columns, **self.options).to(torch.float64), "R")


def advantage(function: Callable[..., Tensor], **options: Any) -> CreditPart:
    """The part that a function of columns is, with options: `advantage(pairwise_auc, tau=0.5)`."""
    return of_function(kind_of(function), "credit")(**options)
