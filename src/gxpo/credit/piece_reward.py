"""Credit of a piece of an attempt: the attempt's outcome within the group, and the piece's own reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import Center, Scale
from gxpo.credit.pieces import pieces_of
from gxpo.credit.step_reward import step_reward
from gxpo.errors import one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@dataclass(frozen=True)
class PieceReward(CreditPart):
    """`step_reward` with pieces in the place of steps: segments of each turn, or the turn without them.

    Reads the signal "piece_reward" [P], of every piece what stands at its first token. A = A^E + weight * A^S, the same
    for all tokens of the piece; A^S is among all pieces of the group, every (trajectory, piece) counting once. In a
    group of equal outcomes A^E is 0, but its pieces may differ.
    """

    weight: float = 1.0
    center: Center = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6

    needs = ("piece_reward",)
    on_equal = "signal"

    def __post_init__(self) -> None:
        one_of("credit.center", self.center, ("mean", "leave_one_out", "median", "none"))
        one_of("credit.scale", self.scale, ("std", "none"))

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        pieces = pieces_of(forest)
        advantage = step_reward(
            forest.outcome,
            signals["piece_reward"][pieces.first],
            forest.ids("group", axis="R"),
            pieces.trajectory,
            self.weight,
            self.center,
            self.scale,
            self.ddof,
            self.eps,
            where=forest.compared,
        )
        return advantage[pieces.piece]
