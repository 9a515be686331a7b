"""Tasks are drawn until there are enough groups whose attempts did not all fare alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, TaskError
from gxpo.forest import Forest
from gxpo.protocols import Session, Task
from gxpo.rollouts.independent import Independent


def mixed(success: Tensor, group: Tensor) -> Tensor:
    """[R] bool: the trajectory's group has verdicts that differ, or has one member only.

    success [R] (nan unknown: no part in the comparison), group [R] ids. A group whose verdicts are all unknown is not
    mixed. Source: DAPO (arXiv 2503.14476, eq. 11, 0 < #correct < G); its code keeps population std > 0 or size 1.

    >>> mixed(torch.tensor([1., 1., 1., 0., 0., 0.]), torch.tensor([0, 0, 1, 1, 2, 2])).tolist()
    [False, False, True, True, False, False]
    """
    known = success.isfinite()
    verdict = torch.where(known, success, torch.zeros_like(success))
    differ = levels.max(verdict, group, known) > levels.min(verdict, group, known)
    return differ | ((levels.count(group) == 1) & known)


@dataclass(frozen=True)
class DynamicSampling:
    """DAPO's dynamic sampling: keep groups with mixed `success`, draw further tasks in place of the others.

    Batches of as many tasks as the step asked for are drawn, sampled and scored until that many groups are kept; of
    these the first in drawing order are returned, scored. `success` decides, never the shaped outcome. Trajectories
    that are not returned are charged to `session.budget.discarded`; their tokens were charged when they were sampled.

    group_size   attempts a task
    max_batches  batches in one step; 0 or less: no limit

    Deviation: where `max_batches` is reached, DAPO's code stops the run. Here the step is trained on the groups that
    were found, fewer than asked for; only a step without any stops the run. Nothing is refilled from other steps.
    """

    group_size: int = 8
    max_batches: int = 10

    drops_equal_groups = True
    provides = ("states",)

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ConfigError(
                f"dynamic sampling compares attempts: rollout.group_size must be at least 2, not {self.group_size!r}"
            )

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        one_batch, drawn = Independent(self.group_size), Counter[str]()
        kept: list[Forest] = []
        n_kept = n_groups = batches = n_sampled = 0
        batch = list(tasks)
        while True:
            forest = session.score(one_batch.grow_more(batch, session, drawn))
            forest.need_verdicts("dynamic sampling")
            n_sampled += forest.n_trajectories
            keep = mixed(torch.where(forest.scored, forest.success, torch.nan), forest.ids("group", axis="R"))
            batches += 1
            n_groups += len(batch)
            if bool(keep.any()):
                kept.append(forest.select(keep))
                n_kept += len(set(kept[-1].group))
            if n_kept >= len(tasks) or batches == self.max_batches:
                break
            batch = session.draw(len(tasks))
            if not batch:
                break
        if not kept:
            session.budget.discarded += n_sampled
            raise TaskError(
                f"dynamic sampling: none of {n_groups} groups has both a success and a failure; make the "
                "tasks harder or easier, raise rollout.group_size, or leave dynamic sampling out"
            )
        chosen = _first_groups(Forest.concat(kept), len(tasks))
        session.budget.discarded += n_sampled - chosen.n_trajectories
        return chosen


def _first_groups(forest: Forest, n: int) -> Forest:
    wanted = set(list(dict.fromkeys(forest.group))[:n])
    return forest.select(torch.tensor([group in wanted for group in forest.group], dtype=torch.bool))
