"""Credit of each token: generalised advantage estimation on rewards that an estimate of progress gives to turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.credit.gae import Gae
from gxpo.credit.recursion import next_in

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def progress_reward(progress: Tensor, grounded: Tensor, weight: float = 1.0, bonus: float = 0.5) -> Tensor:
    """weight * progress + bonus * grounded, float64.

    >>> share, grounded = torch.tensor([0.1, 0.3, 0.5], dtype=torch.float64), torch.tensor([True, False, True])
    >>> progress_reward(share, grounded).tolist()
    [0.6, 0.3, 1.0]
    """
    return weight * progress.to(torch.float64) + bonus * grounded.to(torch.float64)


@dataclass(frozen=True)
class ProgressGae(Gae):
    """`Gae` of the rewards r_t = weight * progress_t + bonus * grounded_t in the place of the environment's.

    progress  signal "progress" [S], whose sum over a trajectory estimates its outcome. The outcome itself is not paid
    grounded  the environment carried the turn's action out (the step's `info` has no "action_error"), or it is the
              last of its trajectory

    Rewards stand on the last trainable token of their turn. The other settings are `Gae`'s.

    Source: SPA-RL, arXiv 2505.20732.
    """

    weight: float = 1.0
    bonus: float = 0.5

    needs = ("value", "progress")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        return super().__call__(self._paid(forest, signals), signals, step)

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        return super().targets(self._paid(forest, signals), signals, step)

    def _paid(self, forest: Forest, signals: Signals) -> Forest:
        last = next_in(forest.step_trajectory) < 0
        grounded = last | (forest.ids("step_info.action_error", axis="S") < 0)
        reward = progress_reward(signals["progress"], grounded, self.weight, self.bonus)
        return forest.replace(step_reward=reward)
