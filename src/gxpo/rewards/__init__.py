"""What a rollout is worth: verifiers, users' functions, shaping; see `scoring.RewardSet`."""

from gxpo.rewards.base import RewardPart
from gxpo.rewards.overlong import Overlong
from gxpo.rewards.scoring import RewardSet

__all__ = ["Overlong", "RewardPart", "RewardSet"]
