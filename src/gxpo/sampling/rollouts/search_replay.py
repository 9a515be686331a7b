"""Tree search that remembers: where it finds no solution of a task, one that it found before stands beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Interval

from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count
from gxpo.sampling.rollouts.replay import Remembers, ReplayBuffer, as_replay, side_by_side
from gxpo.sampling.rollouts.search import Search


@part("search_replay", stage="rollout")
@dataclass(frozen=True)
class SearchReplay(Remembers, Search):
    """`Search`, and for a group without a success up to `replays` of the task's stored solutions as further members.

    replays     the newest
    hard        a group's successes are stored once they have been trained on, if they are at most this share of it
    max_stored  of a task, the newest; `max_tasks`: see `ReplayBuffer`

    A replayed row has origin "replay" and the log-probs and policy version that it was sampled with, and is compared.
    Source: DeepSearch, arXiv 2509.25454: between rounds, solutions of tasks that up to a quarter of the attempts solve
    are cached (`hard`), and later take the place of attempts at them, which are then sampled without a tree. Here the
    search goes on, and they come in only where it fails.
    """

    replays: Count = 1
    hard: Annotated[float, Interval(gt=0, le=1)] = 0.25
    max_stored: int = 8
    max_tasks: int = 10_000
    buffer: ReplayBuffer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffer", ReplayBuffer(self.max_stored, self.max_tasks))

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        fresh = super().grow(tasks, session)
        right = fresh.success >= 1
        share = grouped.mean(right, fresh.ids("group", axis="R"), fresh.scored)
        solved = right & (share <= self.hard)
        if bool(solved.any()):
            self.buffer.hold(fresh.select(solved))
        failed = dict.fromkeys(g for g, s in zip(fresh.group, share.tolist(), strict=True) if s == 0)
        task_of = dict(zip(fresh.group, fresh.task, strict=True))
        records = [
            as_replay(record, group=group, id=f"{group}/replay/{i}")
            for group in failed
            for i, record in enumerate(self.buffer.of(task_of[group])[-self.replays :])
        ]
        return side_by_side(Forest.concat([fresh, Forest.from_records(records)])) if records else fresh
