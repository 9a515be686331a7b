"""Credit of a turn: its trajectory within the group, and the turn among those of the same number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.credit.base import CreditPart
from gxpo.credit.group_relative import Single, group_relative
from gxpo.credit.recursion import next_in
from gxpo.errors import ConfigError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def turn_position(
    whole: Tensor,
    reward: Tensor,
    group: Tensor,
    place: Tensor,
    step_trajectory: Tensor,
    whole_weight: float = 0.5,
    turn_weight: float = 0.5,
    ddof: int = 1,
    eps: float = 1e-6,
    where: Tensor | None = None,
    counted: Tensor | None = None,
    single: str = "zero",
) -> Tensor:
    """A = whole_weight * z_group(whole) + turn_weight * z_place(reward), z(x) = (x - mean) / (std + eps), of each step.

    whole    [R] of each trajectory
    reward   [S] of each turn, or what follows it, discounted
    group    [R] int64 dense ids, -1 = in no group
    place    [S] int64 dense ids of (group, number of the turn); never shared between groups
    where    [R] bool, compared (default: all)
    counted  [S] bool (default: all): the turns that have the second part; the others enter no statistic of it
    single   of a trajectory, and of a turn, that is alone: "zero", or its value "raw" (over 1 + eps)

    Returns [S] float64. Every (trajectory, turn) counts once.

    Source: MatchTIR, arXiv 2601.10712, and MT-GRPO, arXiv 2505.11821; reference code of both.
    """
    compared = torch.ones_like(group, dtype=torch.bool) if where is None else where
    own = place if counted is None else torch.where(counted, place, -1)
    coarse = group_relative(whole, group, ddof=ddof, eps=eps, where=compared, single=single)
    fine = group_relative(reward, own, ddof=ddof, eps=eps, where=compared[step_trajectory], single=single)
    return whole_weight * coarse[step_trajectory] + turn_weight * torch.where(own >= 0, fine, 0.0)


@dataclass(frozen=True)
class TurnPosition(CreditPart):
    """`turn_position`, the same for every token of a step. The defaults are MatchTIR's.

    over      what trajectories are compared by: "rewards", the sum of their turns' rewards, or the "outcome"
    discount  of the rewards of later turns in a turn's return; 0: a turn is judged by its own reward
    last      whether the last turn of a trajectory has the second part; without, it is judged by its trajectory alone
              and enters no statistic of its number (MT-GRPO)

    Where a trajectory has no step rewards, its outcome is that of its last turn (`Forest.returns`).
    """

    over: Literal["rewards", "outcome"] = "rewards"
    discount: float = 0.9
    whole_weight: float = 0.5
    turn_weight: float = 0.5
    last: bool = True
    ddof: int = 1
    eps: float = 1e-6
    single: Single = "zero"

    on_equal = "signal"

    def __post_init__(self) -> None:
        one_of("credit.over", self.over, ("rewards", "outcome"))
        one_of("credit.single", self.single, ("zero", "raw"))
        if not 0 <= self.discount <= 1:
            raise ConfigError(f"credit.discount is {self.discount}; it is between 0 and 1")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        whole = forest.outcome
        if self.over == "rewards":
            whole = torch.zeros(forest.n_trajectories, dtype=torch.float64)
            whole.index_add_(0, forest.step_trajectory, forest.returns(0.0))
        advantage = turn_position(
            whole,
            forest.returns(self.discount),
            forest.ids("group", axis="R"),
            forest.ids("group", "turn", axis="S"),
            forest.step_trajectory,
            self.whole_weight,
            self.turn_weight,
            self.ddof,
            self.eps,
            where=forest.compared,
            counted=None if self.last else next_in(forest.step_trajectory) >= 0,
            single=self.single,
        )
        return forest.to_path(advantage, "S")
