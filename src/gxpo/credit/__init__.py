"""Advantage estimators: group-relative, step-level, tree-based, and with value functions."""

from typing import TYPE_CHECKING

from gxpo import former
from gxpo.credit.base import CreditPart, CreditSum
from gxpo.credit.batch_whiten import BatchWhiten, batch_whiten
from gxpo.credit.length_weighted import LengthWeighted, length_weighted
from gxpo.credit.relative import Relative, Statistic, group_relative
from gxpo.credit.virtual_members import PseudoRollouts, virtual_members

if TYPE_CHECKING:
    from gxpo.credit.function import advantage
    from gxpo.credit.state_relative import StateRelative
    from gxpo.credit.success_rate import mixed_scale

GroupRelative = Relative
__getattr__ = former.classes(
    "credit", "MixedScale", advantage="function", StateRelative="state_relative", mixed_scale="success_rate"
)

__all__ = [
    "BatchWhiten",
    "CreditPart",
    "CreditSum",
    "GroupRelative",
    "LengthWeighted",
    "PseudoRollouts",
    "Relative",
    "StateRelative",
    "Statistic",
    "advantage",
    "batch_whiten",
    "group_relative",
    "length_weighted",
    "mixed_scale",
    "virtual_members",
]
