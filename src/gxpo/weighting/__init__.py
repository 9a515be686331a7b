"""Which rollouts and tokens count, and how much."""

from gxpo.weighting.base import WeightPart, WeightProduct
from gxpo.weighting.mismatch import Truncated, truncated

__all__ = ["Truncated", "WeightPart", "WeightProduct", "truncated"]
