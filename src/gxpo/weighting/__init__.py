"""Weights: masks and factors on the policy loss of groups, trajectories and tokens."""

from gxpo.weighting.base import WeightPart, WeightProduct
from gxpo.weighting.group_weight import GroupWeight
from gxpo.weighting.mismatch import Truncated, truncated
from gxpo.weighting.token_weight import TokenWeight

__all__ = ["GroupWeight", "TokenWeight", "Truncated", "WeightPart", "WeightProduct", "truncated"]
