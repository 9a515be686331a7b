"""Only what the newest version of the policy wrote in each trajectory: the rest has been trained before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def newest_version(version: Tensor, trajectory: Tensor) -> Tensor:
    """w = 1 where an entry's policy version is the newest of its trajectory, else 0; [P] float64.

    version [P] int64; trajectory [P]

    >>> newest_version(torch.tensor([3, 3, 4, 2]), torch.tensor([0, 0, 0, 1])).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    return (version.to(torch.float64) == levels.max(version, trajectory)).to(torch.float64)


@dataclass(frozen=True)
class NewestVersion(WeightPart):
    """`newest_version`: of a rollout that goes on over several steps, the tokens of the last of them.

    It keeps the policy term from the older ones; they stay in its denominators, and terms that weights do not concern
    (value, KL, entropy) see them. Where one version wrote all of a trajectory, all weights are 1.
    """

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        return newest_version(forest.to_path(forest.policy_version, "N"), forest.path_trajectory)
