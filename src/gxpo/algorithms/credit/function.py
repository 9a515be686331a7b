"""Advantage functions of columns, and the class that makes a function a part of `credit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.columns import STATES, Columns, columns_read_by, needs_and_requires
from gxpo.algorithms.credit.relative import Statistic
from gxpo.algorithms.credit.state_keys import StateKeyed
from gxpo.parts.definition import kind_of, show
from gxpo.parts.functions import FunctionPart, expect, signature
from gxpo.parts.registry import of_function

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


class Advantage(FunctionPart, CreditPart):
    """Advantage computed by a function whose parameters name columns (see `Columns`).

    axis   of the columns: "R", "S" or "P"
    gives  axis of the advantage, where it is another: the same for all tokens of a trajectory or step

    Signals that it reads are in `needs`. A function is one of columns if it is registered as a part, or if it has a
    parameter `outcome`, `success`, `correct` or `group`, and none named `signals`; any other is called with (forest,
    signals, step). One with a parameter `**statistic`, or `advantage`, has the options of `Statistic`, too; one that
    reads `state` or `moves` those of `StateKeyed`.
    """

    axis: ClassVar[str] = "R"
    gives: ClassVar[str] = ""

    @classmethod
    def facts(cls, function: Callable[..., Any]) -> dict[str, Any]:
        return dict(zip(("needs", "requires"), needs_and_requires(function), strict=True))

    @classmethod
    def bases(cls, function: Callable[..., Any]) -> tuple[type, ...]:
        # The options of a base class are offered only to functions that read what the base computes.
        names = {name for name, _ in columns_read_by(function)}
        compares = signature(function).passes_on or "advantage" in names
        return (cls, *([StateKeyed] if names & STATES else []), *([Statistic] if compares else []))

    @classmethod
    def options_of(cls, function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
        # A column's keyword-only parameters are options of the part that reads it.
        column_options = [signature(column).options for _, column in columns_read_by(function) if column is not None]
        return {
            **super().options_of(function),
            **{k: option for options in column_options for k, option in options.items()},
        }

    @classmethod
    def accepts(cls, function: Callable[..., Any]) -> bool:
        # A function with `signals` is called with (forest, signals, step); one of columns names a column of outcomes.
        names = signature(function).columns
        return "signals" not in names and not {"outcome", "success", "correct", "group"}.isdisjoint(names)

    @torch.no_grad()
    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        advantages = Columns(forest, signals, self, self.options).call(self.function, self.axis)
        row_names = {"R": "trajectory", "S": "step of a trajectory", "P": "path token"}
        subject = f"credit {show(type(self))}"
        output_axis = self.gives or self.axis
        # A user's function may return a wrong shape: the message names its file and the rows that are due.
        advantages = expect(
            advantages, (forest._size(output_axis),), subject, self.function, row_names[output_axis]
        ).to(torch.float64)
        return advantages if output_axis == "P" else forest.to_path(advantages, output_axis)


def advantage(function: Callable[..., Tensor], **options: Any) -> CreditPart:
    """Make a part of a function of columns, with options: `advantage(pairwise_auc, tau=0.5)`."""
    return of_function(kind_of(function), "credit")(**options)
