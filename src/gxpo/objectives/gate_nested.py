"""A clip in two levels: how far the trajectory has moved as a whole, and how far a token has from its trajectory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.gate import Entries, Gate
from gxpo.objectives.sequence_score import per_trajectory


def two_levels(log_ratio: Tensor, trajectory: Tensor) -> tuple[Tensor, Tensor]:
    """([n], [n]): the trajectory's mean log-ratio a, and the token's residual from it, both with gradient."""
    n = int(trajectory.max()) + 1 if trajectory.numel() else 0
    base = per_trajectory(log_ratio, trajectory, n)[trajectory]
    return base, log_ratio - base


@dataclass(frozen=True)
class NestedClip(Gate):
    """-A exp(hold(a, trajectory_clip) + hold(log rho - a, residual_clip)), a the trajectory's mean log-ratio.

    trajectory_clip, residual_clip  in log space, either way: 0.2 holds the factor in (e^-0.2, e^0.2)

    Both levels are held on both sides, whatever the sign of the credit: nothing is pessimistic. The residual is taken
    from the mean before that is held, so that the levels are orthogonal: where the mean is held, a trajectory's
    gradient sums to 0, and its tokens move against each other only. On policy the loss is -A and its gradient
    REINFORCE's. Reads the tokens' own log-ratios: `objective.ratio` plays no part.

    Source: FiberPO, arXiv 2603.08239 (base and fibre gate).
    """

    trajectory_clip: float = 0.2
    residual_clip: float = 0.2

    couples = "trajectory"

    def __post_init__(self) -> None:
        if not (self.trajectory_clip >= 0 and self.residual_clip >= 0):
            raise ConfigError(
                "objective.trajectory_clip and objective.residual_clip are widths, >= 0, not "
                f"{self.trajectory_clip}, {self.residual_clip}"
            )

    def loss(self, x: Entries) -> Tensor:
        base, residual = two_levels(x.log_ratio, x.trajectory)
        base = base.clamp(-self.trajectory_clip, self.trajectory_clip)
        return -x.credit * (base + residual.clamp(-self.residual_clip, self.residual_clip)).exp()

    def clipped(self, x: Entries) -> Tensor:
        base, residual = two_levels(x.log_ratio, x.trajectory)
        held = (base.abs() > self.trajectory_clip) | (residual.abs() > self.residual_clip)
        return held & (x.credit != 0)
