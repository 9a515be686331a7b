"""How a trajectory's score is divided over trajectories, turns, segments and tokens."""

from gxpo.credit.anchor_state import AnchorState, anchor_state
from gxpo.credit.base import CreditPart, CreditSum
from gxpo.credit.batch_whiten import BatchWhiten, batch_whiten
from gxpo.credit.group_relative import GroupRelative, group_relative
from gxpo.credit.length_weighted import LengthWeighted, length_weighted
from gxpo.credit.mixed_scale import MixedScale, mixed_scale
from gxpo.credit.virtual_members import VirtualMembers, virtual_members

__all__ = [
    "AnchorState",
    "BatchWhiten",
    "CreditPart",
    "CreditSum",
    "GroupRelative",
    "LengthWeighted",
    "MixedScale",
    "VirtualMembers",
    "anchor_state",
    "batch_whiten",
    "group_relative",
    "length_weighted",
    "mixed_scale",
    "virtual_members",
]
