"""Rewards: verifiers, user functions, LLM judges, sandboxed tests, and shaping; see `scoring.RewardSet`."""

from typing import TYPE_CHECKING

from gxpo.base.imports import lazy_names

if TYPE_CHECKING:
    from gxpo.environments.rewards.base import RewardPart
    from gxpo.environments.rewards.length import Overlong
    from gxpo.environments.rewards.scoring import RewardSet
    from gxpo.environments.rewards.shape import Shape

__all__ = ["Overlong", "RewardPart", "RewardSet", "Shape"]

__getattr__ = lazy_names(__name__, Overlong="length", RewardPart="base", RewardSet="scoring", Shape="shape")
