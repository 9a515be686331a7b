"""Credit of a piece of an attempt: the attempt's outcome within the group, and the piece's own reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from gxpo.credit.pieces import pieces_of
from gxpo.credit.step_reward import StepReward

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@dataclass(frozen=True)
class PieceReward(StepReward):
    """`step_reward` with pieces in the place of steps: segments of each turn, or the turn without them.

    Reads the signal "piece_reward" [P], of every piece what stands at its first token. A = A^E + step_weight * A^S, the
    same for all tokens of the piece; A^S is among all pieces of the group, every (trajectory, piece) counting once. In
    a group of equal outcomes A^E is 0, but its pieces may differ.
    """

    needs = ("piece_reward",)

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        pieces = pieces_of(forest)
        return self.among(forest, signals["piece_reward"][pieces.first], pieces.trajectory)[pieces.piece]
