"""How a group is grown: tasks in, a forest of trajectories out."""

from typing import TYPE_CHECKING

from gxpo.imports import lazy_names
from gxpo.rollouts.base import Rollout, Round
from gxpo.rollouts.build import Attempts, Draw
from gxpo.rollouts.episodes import Play
from gxpo.rollouts.fork import Fork
from gxpo.rollouts.independent import Independent

if TYPE_CHECKING:
    from gxpo.rollouts.dynamic_sampling import DynamicSampling

__all__ = ["Attempts", "Draw", "DynamicSampling", "Fork", "Independent", "Play", "Rollout", "Round"]

__getattr__ = lazy_names(__name__, DynamicSampling="dynamic_sampling")
