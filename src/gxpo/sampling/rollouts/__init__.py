"""Rollouts: sample groups of attempts at tasks and return them as a forest of trajectories."""

from typing import TYPE_CHECKING

from gxpo.base.imports import lazy_names
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Fork
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.rounds import Independent

if TYPE_CHECKING:
    from gxpo.sampling.rollouts.dynamic_sampling import DynamicSampling

__all__ = ["Attempts", "Draw", "DynamicSampling", "Fork", "Independent", "Play", "Rollout", "Round"]

__getattr__ = lazy_names(__name__, DynamicSampling="dynamic_sampling")
