"""Advantages of replayed rollouts: against a baseline of the current policy (AVATAR), or by how much their update
improved the policy (PIPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import grouped
from gxpo.credit.relative import Statistic
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

REPLAY = "replay"


def replayed(forest: Forest) -> Tensor:
    """Trajectories of origin "replay", [R] bool."""
    return torch.tensor([origin == REPLAY for origin in forest.origin], dtype=torch.bool)


@torch.no_grad()
def replay_baseline(
    outcome: Tensor, baseline: Tensor, group: Tensor, ddof: int = 1, eps: float = 1e-6, where: Tensor | None = None
) -> Tensor:
    """A = (outcome - baseline) / (std + eps), std of the group's outcomes; [R] float64.

    baseline  [R] nan: nothing is known of the task, and A is 0
    where     [R] bool: whose outcomes make up the std (default: all)

    Where there is no spread to measure by (equal outcomes, or ddof members) A is outcome - baseline, so that a group
    that is right throughout still tells a policy that is not. The sum over a group is not 0.

    >>> replay_baseline(torch.tensor([1.0, 1.0]), torch.tensor([0.25, 0.25]), torch.tensor([0, 0])).tolist()
    [0.75, 0.75]
    """
    apart = outcome.to(torch.float64) - baseline.to(torch.float64)
    spread = grouped.std(outcome, group, where, ddof)
    return torch.where(spread > 0, apart / (spread + eps), apart).nan_to_num(nan=0.0)


@part("replay_baseline", stage="credit")
@dataclass(frozen=True)
class ReplayBaseline(Statistic):
    """Group-relative advantages of fresh rollouts; `replay_baseline` with the signal "baseline" [R] of replayed ones.

    Source: AVATAR, arXiv 2508.03100.
    """

    needs = ("baseline",)
    learns_from_equal_groups = True

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group, again = forest.ids("group", axis="R"), replayed(forest)
        where = forest.compared & again
        old = replay_baseline(forest.outcome, signals["baseline"], group, self.ddof, self.eps, where)
        return forest.to_path(torch.where(again, old, self.of_outcome(forest)), "R")


@torch.no_grad()
def shares(advantage: Tensor, group: Tensor, eps: float = 1e-6, where: Tensor | None = None) -> Tensor:
    """a_i = G A_i / (sum_j |A_j| + eps), G and the sum over the group's counting members; [R] float64.

    sum_i |a_i| = G up to eps: every group is moved as far, whatever the scale of its advantages.

    >>> shares(torch.tensor([1.5, -0.5, -0.5, -0.5]), torch.zeros(4, dtype=torch.int64), eps=0.0)
    tensor([ 2.0000, -0.6667, -0.6667, -0.6667], dtype=torch.float64)
    """
    total = grouped.sum(advantage.abs(), group, where) + eps
    scaled = grouped.count(group, where) * advantage.to(torch.float64)
    return torch.where(total > 0, scaled / torch.where(total > 0, total, 1.0), 0.0)


@part("retrospective", stage="credit")
@dataclass(frozen=True)
class Retrospective(Statistic):
    """Retrospective advantages (PIPO): `shares` times the signal "improvement" [R] of replayed rollouts, GRPO of fresh.

    share_eps  of `shares`

    "improvement" says how much better (above 0) or worse (below) the policy has become since the replayed rollouts
    were trained on. Source: PIPO, arXiv 2604.00860.
    """

    share_eps: float = 1e-6

    needs = ("improvement",)

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        fresh = self.of_outcome(forest)
        again = shares(fresh, forest.ids("group", axis="R"), self.share_eps, forest.compared) * signals["improvement"]
        return forest.to_path(torch.where(replayed(forest), again, fresh), "R")
