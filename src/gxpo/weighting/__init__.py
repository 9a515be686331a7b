"""Which rollouts and tokens count, and how much."""

from gxpo.weighting.base import WeightPart, WeightProduct
from gxpo.weighting.mismatch import Truncated, truncated

PARTS = {"truncated": Truncated}

__all__ = ["PARTS", "Truncated", "WeightPart", "WeightProduct", "truncated"]
