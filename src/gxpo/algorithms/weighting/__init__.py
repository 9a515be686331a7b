"""Weights: masks and factors on the policy loss of groups, trajectories and tokens."""

from gxpo.algorithms.weighting.base import WeightPart, WeightProduct
from gxpo.algorithms.weighting.mismatch import Truncated, truncated
from gxpo.algorithms.weighting.score_weight import GroupWeight, TokenWeight

__all__ = ["GroupWeight", "TokenWeight", "Truncated", "WeightPart", "WeightProduct", "truncated"]
