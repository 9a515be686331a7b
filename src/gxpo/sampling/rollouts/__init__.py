"""How a group is grown: tasks in, a forest of trajectories out."""

from typing import TYPE_CHECKING

from gxpo.base.imports import lazy_names
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.build import Attempts, Draw
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.fork import Fork
from gxpo.sampling.rollouts.independent import Independent

if TYPE_CHECKING:
    from gxpo.sampling.rollouts.dynamic_sampling import DynamicSampling

__all__ = ["Attempts", "Draw", "DynamicSampling", "Fork", "Independent", "Play", "Rollout", "Round"]

__getattr__ = lazy_names(__name__, DynamicSampling="dynamic_sampling")
