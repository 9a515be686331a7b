"""Dynamic sampling (DAPO): draw further tasks until enough groups have both a success and a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.base.errors import TaskError
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Fork
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.episodes import Play


def is_mixed(success: Tensor, group: Tensor) -> Tensor:
    """Mark [R] the members of groups whose verdicts differ, or that have one member only.

    success [R] (nan unknown: not compared), group [R] ids. A group whose verdicts are all unknown is not mixed.
    Source: DAPO (arXiv 2503.14476, eq. 11, 0 < #correct < G); its code keeps population std > 0 or size 1.

    >>> is_mixed(torch.tensor([1., 1., 1., 0., 0., 0.]), torch.tensor([0, 0, 1, 1, 2, 2])).tolist()
    [False, False, True, True, False, False]
    """
    has_verdict_R = success.isfinite()
    verdict_R = torch.where(has_verdict_R, success, torch.zeros_like(success))
    verdicts_differ_R = grouped.max(verdict_R, group, has_verdict_R) > grouped.min(verdict_R, group, has_verdict_R)
    return verdicts_differ_R | ((grouped.count(group) == 1) & has_verdict_R)


@part("dynamic_sampling", stage="rollout")
@dataclass(frozen=True)
class DynamicSampling(Rollout):
    """DAPO's dynamic sampling: keep groups with mixed `success`, draw further tasks in place of the others.

    Batches of as many tasks as the step asked for are drawn, sampled and scored until that many groups are kept; of
    these the first in drawing order are returned, scored. `success` decides, never the shaped outcome. Trajectories
    that are not returned are charged to `session.budget.discarded`; their tokens were charged when they were sampled.

    group_size   attempts a task
    max_batches  batches in one step; 0 or less: no limit

    Deviation: where `max_batches` is reached, DAPO's code stops the run. Here the step is trained on the groups that
    were found, fewer than asked for; only a step without any stops the run. Nothing is refilled from other steps.
    """

    group_size: Annotated[int, Ge(2)] = 8
    max_batches: int = 10
    team: str = ""

    drops_equal_groups = True

    @property
    def across_groups(self) -> bool:
        """True: a group that is not mixed is replaced by another task's."""
        return True

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts | Fork]:
        n_groups = len(rounds[0].groups)
        # as many further tasks as a batch: attempts of one batch are sampled together
        n_mixed = sum(len(set(_mixed_groups(batch).group)) for batch in rounds)
        if n_mixed >= n_groups or len(rounds) == self.max_batches:
            return []
        return [draw.attempts(self.group_size) for draw in play.draws(play.session.draw(n_groups))]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        mixed_forest = Forest.concat([_mixed_groups(r) for r in rounds])
        # the first in drawing order, not the best: a choice by outcome would bias the batch
        chosen_groups = set(list(dict.fromkeys(mixed_forest.group))[: len(rounds[0].groups)])
        play.session.budget.discarded += sum(group not in chosen_groups for r in rounds for group in r.forest.group)
        if not chosen_groups:
            raise TaskError(
                f"dynamic sampling: none of {len(play.step_draws)} groups has both a success and a failure; make the "
                "tasks harder or easier, raise rollout.group_size, or leave dynamic sampling out"
            )
        return mixed_forest.select(
            torch.tensor([group in chosen_groups for group in mixed_forest.group], dtype=torch.bool)
        )


def _mixed_groups(batch: Round) -> Forest:
    """Select the groups of a round whose verdicts differ; unscored attempts have no verdict."""
    forest = batch.scored
    forest.need_verdicts("dynamic sampling")
    return forest.select(is_mixed(torch.where(forest.scored, forest.success, torch.nan), forest.ids("group", axis="R")))
