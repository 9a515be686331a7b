"""Dynamic sampling (DAPO): resample prompts until enough groups have non-zero reward variance."""

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
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.build import Attempts
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.fork import Fork


def mixed(success: Tensor, group: Tensor) -> Tensor:
    """[R] bool: the trajectory's group has verdicts that differ, or has one member only.

    success [R] (nan unknown: no part in the comparison), group [R] ids. A group whose verdicts are all unknown is not
    mixed. Source: DAPO (arXiv 2503.14476, eq. 11, 0 < #correct < G); its code keeps population std > 0 or size 1.

    >>> mixed(torch.tensor([1., 1., 1., 0., 0., 0.]), torch.tensor([0, 0, 1, 1, 2, 2])).tolist()
    [False, False, True, True, False, False]
    """
    known = success.isfinite()
    verdict = torch.where(known, success, torch.zeros_like(success))
    differ = grouped.max(verdict, group, known) > grouped.min(verdict, group, known)
    return differ | ((grouped.count(group) == 1) & known)


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
        """A group that is not mixed has another drawn in its place."""
        return True

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts | Fork]:
        wanted = len(rounds[0].groups)
        if sum(len(set(kept.group)) for kept in map(_kept, rounds)) >= wanted or len(rounds) == self.max_batches:
            return []
        return [draw.attempts(self.group_size) for draw in play.draws(play.session.draw(wanted))]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        found = Forest.concat([_kept(r) for r in rounds])
        chosen = set(list(dict.fromkeys(found.group))[: len(rounds[0].groups)])
        play.session.budget.discarded += sum(group not in chosen for r in rounds for group in r.forest.group)
        if not chosen:
            raise TaskError(
                f"dynamic sampling: none of {len(play.drawn)} groups has both a success and a failure; make the "
                "tasks harder or easier, raise rollout.group_size, or leave dynamic sampling out"
            )
        return found.select(torch.tensor([group in chosen for group in found.group], dtype=torch.bool))


def _kept(batch: Round) -> Forest:
    """The groups whose verdicts differ."""
    forest = batch.scored
    forest.need_verdicts("dynamic sampling")
    return forest.select(mixed(torch.where(forest.scored, forest.success, torch.nan), forest.ids("group", axis="R")))
