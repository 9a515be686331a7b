"""How a group is grown: tasks in, a forest of trajectories out."""

from gxpo.rollouts.dynamic_sampling import DynamicSampling
from gxpo.rollouts.independent import Independent

__all__ = ["DynamicSampling", "Independent"]
