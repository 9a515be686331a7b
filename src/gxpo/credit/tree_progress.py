"""The value of the state after each piece of an attempt, by what came of it: target of a value head, and credit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.credit.pieces import Pieces, pieces_of
from gxpo.errors import ConfigError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def values_after(outcome: Tensor, place: Tensor, where: Tensor) -> Tensor:
    """[P] float64: mean outcome of the counting trajectories through each path token; the trajectory's own outcome
    where there is none.

    outcome [P] of the entry's trajectory; place [P] int64 dense ids of (group, stored token); where [P] bool, compared
    """
    known = levels.count(place, where) > 0
    return torch.where(known, levels.mean(outcome, place, where), outcome.to(torch.float64))


@torch.no_grad()
def values_before(after: Tensor, trajectory: Tensor, root: Tensor) -> Tensor:
    """[K] float64: the value after the trajectory's piece before, of a first piece that of the root.

    after [K], trajectory [K] ascending, root [K] mean outcome of the group
    """
    first = torch.ones(len(after), dtype=torch.bool)
    first[1:] = trajectory[1:] != trajectory[:-1]
    return torch.where(first, root, after.roll(1))


@dataclass(frozen=True)
class TreeProgress(CreditPart):
    """progress * (V after a piece - V before it) for every token of the piece; V: mean outcome of the compared attempts
    through a state, of the group where an attempt begins. A piece is a segment of an action, or a turn without them.

    progress  0: no credit, only the target
    at        where a value head is trained: "last", on a piece's last token (which most often ends it: all but that
              token has been read) to V after it; "first", on its first token to V before it

    Leaves "value_target" [P] to the objective, nan at all other tokens. On an attempt the credit adds up, over its
    pieces, to outcome - mean outcome; a state that no compared attempt goes through is worth what the attempt earned.
    Without forks V after a piece is the attempt's own outcome, and the target a Monte-Carlo return.

    Source: targets as in AlphaMath, arXiv 2405.03553 ("last": at the line break that ends a step), and MASPRM, arXiv
    2510.24803 ("last": V(s') to the mean return of the search after the action). V after - V before: SPO, VinePPO.
    """

    progress: float = 1.0
    at: Literal["last", "first"] = "last"

    provides = ("value_target",)

    def __post_init__(self) -> None:
        one_of("credit.at", self.at, ("last", "first"))
        if not math.isfinite(self.progress):
            raise ConfigError(f"credit.progress is {self.progress}; it is a finite factor")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        if self.progress == 0:
            return torch.zeros(forest.n_entries, dtype=torch.float64)
        pieces = pieces_of(forest)
        after, before = self._values(forest, pieces)
        change = after - before
        rounding = levels.DEGENERATE * torch.maximum(after.abs(), before.abs())
        change = torch.where(change.abs() <= rounding, 0.0, change)
        return (self.progress * change)[pieces.piece]

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        """{"value_target": [P]}: V at one token of each piece, nan elsewhere."""
        pieces = pieces_of(forest)
        after, before = self._values(forest, pieces)
        target = torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)
        place, value = (pieces.last, after) if self.at == "last" else (pieces.first, before)
        target[place] = value
        return {"value_target": target}

    @staticmethod
    def _values(forest: Forest, pieces: Pieces) -> tuple[Tensor, Tensor]:
        """[K], [K] V after and before each piece."""
        group, outcome, counts = forest.ids("group", axis="R"), forest.outcome, forest.compared
        owner, path = pieces.trajectory, forest.path_trajectory
        root = torch.where(levels.count(group, counts) > 0, levels.mean(outcome, group, counts), outcome)[owner]
        after = values_after(outcome[path], forest.ids("group", "token", axis="P"), counts[path])[pieces.last]
        ends = torch.ones(len(owner), dtype=torch.bool)
        ends[:-1] = owner[1:] != owner[:-1]
        after = torch.where(ends, outcome[owner], after)  # whoever goes on from there
        return after, values_before(after, owner, root)
