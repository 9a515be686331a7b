"""How a trajectory's score is divided over trajectories, turns, segments and tokens."""

from gxpo.credit.anchor_state import AnchorState, anchor_state
from gxpo.credit.base import CreditPart, CreditSum
from gxpo.credit.batch_whiten import BatchWhiten, batch_whiten
from gxpo.credit.group_relative import GroupRelative, group_relative
from gxpo.credit.length_weighted import LengthWeighted, length_weighted

__all__ = [
    "AnchorState",
    "BatchWhiten",
    "CreditPart",
    "CreditSum",
    "GroupRelative",
    "LengthWeighted",
    "anchor_state",
    "batch_whiten",
    "group_relative",
    "length_weighted",
]
