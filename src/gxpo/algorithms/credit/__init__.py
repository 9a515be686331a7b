"""Advantage estimators: group-relative, step-level, tree-based, and with value functions."""

from typing import TYPE_CHECKING

from gxpo.algorithms.credit.base import CreditPart, CreditSum
from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.relative import Relative, Statistic, group_relative
from gxpo.base.imports import lazy_names

if TYPE_CHECKING:
    from gxpo.algorithms.credit.baselines import length_weighted, pseudo_rollouts
    from gxpo.algorithms.credit.function import advantage
    from gxpo.algorithms.credit.state_relative import StateRelative
    from gxpo.algorithms.credit.success_rate import mixed_scale

GroupRelative = Relative
__getattr__ = lazy_names(
    __name__,
    advantage="function",
    StateRelative="state_relative",
    length_weighted="baselines",
    mixed_scale="success_rate",
    pseudo_rollouts="baselines",
)

__all__ = [
    "CreditPart",
    "CreditSum",
    "GroupRelative",
    "Relative",
    "StateRelative",
    "Statistic",
    "advantage",
    "batch_whiten",
    "group_relative",
    "length_weighted",
    "mixed_scale",
    "pseudo_rollouts",
]
