"""Turn advantages (IGPO): information gain and outcome, normalised over all turns of the group, then summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo import grouped
from gxpo.credit.base import CreditPart
from gxpo.credit.recursion import linear_recursion, next_in
from gxpo.credit.value_delta import value_delta
from gxpo.registry import part
from gxpo.trees import begins_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def pooled_turns(
    reward: Tensor,
    group: Tensor,
    following: Tensor,
    discount: float = 1.0,
    ddof: int = 1,
    eps: float = 1e-6,
    where: Tensor | None = None,
    scale: str = "std",
    floor: float = 0.0,
) -> Tensor:
    """A_t = sum over k >= t of discount^(k - t) (reward_k - mean) / (spread + eps), in each trajectory.

    reward     [S] of each turn by itself; nan: none, it is in no statistic and adds nothing
    group      [S] int64 ids, -1 = in no group; mean and std are over all turns of the group, of whatever place
    following  [S] the turn that follows, -1 none
    where      [S] bool, compared (default: all): whose turns enter the statistics
    scale      "std": spread = sqrt(std^2 + floor^2), so that gains far below `floor` stay small
               "none": rewards are centred and nothing more

    Returns [S] float64; all 0 in a group of equal rewards. What is added up is centred over turns, not over
    trajectories: a turn has the more summands the earlier it is, and where the mean is above 0, as with rewards that
    are mostly won in the last turn, a long trajectory is worse off by that alone.

    >>> x = torch.tensor([0.1, 0.2, 1.0, 0.0, 0.3, -0.1, 0.1, 0.0, 0.0], dtype=torch.float64)
    >>> after = torch.tensor([1, 2, -1, 4, -1, 6, 7, 8, -1])
    >>> [round(v, 6) for v in pooled_turns(x, torch.zeros(9).long(), after).tolist()[:3]]
    [2.31744, 2.552542, 2.48537]
    """
    known = reward.isfinite() if where is None else reward.isfinite() & where
    plain = reward.nan_to_num(nan=0.0)
    centred = grouped.normalize(plain, group, known, scale="none")
    if scale == "std":
        std = grouped.std(plain, group, known, ddof)
        spread = (std.square() + floor**2).sqrt() + eps
        centred = torch.where(std > 0, centred / spread, 0.0)
    return linear_recursion(torch.where(reward.isfinite(), centred, 0.0), discount, following)


@part("pooled_turns", stage="credit")
@dataclass(frozen=True)
class PooledTurns(CreditPart):
    """`pooled_turns` of the gains in belief, the same for every token of a turn: IGPO.

    The reward of a turn is what it raised the belief in the right answer by (signals "belief_before", "belief_after");
    of a trajectory's last turn, its outcome. In a group of equal outcomes the earlier turns may differ.

    scale  "std" of the group's rewards | "none": advantages in units of the belief and the outcome
    floor  of the std: rewards that spread much less than this have advantages in proportion to it, not of order 1.
           Where a whole group fails and no turn tells the policy anything, gains are noise, and their std is no
    yardstick pool   "joint": outcomes and gains have one mean and one spread | "separate": each kind its own
    gain   of beliefs: "prob", their difference | "log", that of their logarithms
    """

    discount: Annotated[float, Interval(ge=0, le=1)] = 1.0
    ddof: int = 1
    eps: float = 1e-6
    scale: Literal["std", "none"] = "std"
    floor: Annotated[float, Interval(ge=0)] = 1e-4
    pool: Literal["joint", "separate"] = "joint"
    gain: Literal["prob", "log"] = "prob"

    needs = ("belief_before", "belief_after")
    learns_from_equal_groups = True

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        before, after = signals["belief_before"], signals["belief_after"]
        first = begins_of(forest.path_step, forest.n_steps)
        acts = first.diff() > 0
        reward = torch.full((forest.n_steps,), torch.nan, dtype=torch.float64)
        at = first[:-1][acts]
        known = (before + after)[at].isfinite()
        reward[acts] = torch.where(known, value_delta(before[at], after[at], form=self.gain), torch.nan)
        following = next_in(forest.step_trajectory)
        last = following < 0
        reward[last] = forest.outcome[forest.step_trajectory[last]]
        group, compared = forest.ids("group", axis="S"), forest.compared[forest.step_trajectory]
        if self.pool == "separate":
            group = torch.where(group >= 0, 2 * group + last.long(), -1)
        advantage = pooled_turns(
            reward, group, following, self.discount, self.ddof, self.eps, compared, self.scale, self.floor
        )
        return forest.to_path(advantage, "S")
