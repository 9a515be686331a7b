"""Advantages that are pure functions of columns: how a function becomes a part of `credit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.columns import STATES, Columns, needed, read_by
from gxpo.algorithms.credit.relative import Statistic
from gxpo.algorithms.credit.state_keys import StateKeyed
from gxpo.parts.definition import kind_of, show
from gxpo.parts.functions import FunctionPart, expect, signature
from gxpo.parts.registry import of_function

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


class Advantage(FunctionPart, CreditPart):
    """Advantage that is a function of columns (see `Columns`) by the names of its parameters.

    axis   of the columns: "R", "S" or "P"
    gives  axis of the advantage, where it is another: the same for all tokens of a trajectory or step

    What it reads as a signal is in `needs`. A function is one of columns if it states a part's name, or if it has a
    parameter `outcome`, `success`, `correct` or `group`, and none named `signals`; any other is called with (forest,
    signals, step). One with a parameter `**statistic`, or `advantage`, has the options of `Statistic`, too; one that
    reads `state` or `moves` those of `StateKeyed`.
    """

    axis: ClassVar[str] = "R"
    gives: ClassVar[str] = ""

    @classmethod
    def facts(cls, function: Callable[..., Any]) -> dict[str, Any]:
        return dict(zip(("needs", "requires"), needed(function), strict=True))

    @classmethod
    def bases(cls, function: Callable[..., Any]) -> tuple[type, ...]:
        names = {name for name, _ in read_by(function)}
        compares = signature(function).passes_on or "advantage" in names
        return (cls, *([StateKeyed] if names & STATES else []), *([Statistic] if compares else []))

    @classmethod
    def asked(cls, function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
        made = [signature(column).options for _, column in read_by(function) if column is not None]
        return {**super().asked(function), **{k: option for options in made for k, option in options.items()}}

    @classmethod
    def accepts(cls, function: Callable[..., Any]) -> bool:
        names = signature(function).columns
        return "signals" not in names and not {"outcome", "success", "correct", "group"}.isdisjoint(names)

    @torch.no_grad()
    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        advantages = Columns(forest, signals, self, self.options).call(self.function, self.axis)
        units = {"R": "trajectory", "S": "step of a trajectory", "P": "path token"}
        what = f"credit {show(type(self))}"
        at = self.gives or self.axis
        advantages = expect(advantages, (forest._size(at),), what, self.function, units[at]).to(torch.float64)
        return advantages if at == "P" else forest.to_path(advantages, at)


def advantage(function: Callable[..., Tensor], **options: Any) -> CreditPart:
    """The part that a function of columns is, with options: `advantage(pairwise_auc, tau=0.5)`."""
    return of_function(kind_of(function), "credit")(**options)
