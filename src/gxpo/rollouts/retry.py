"""Retry in stages until one attempt succeeds; else a stored success comes back (AR3PO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Session
from gxpo.registry import part
from gxpo.rollouts.base import Count, Rollout, Round
from gxpo.rollouts.build import Attempts, Draw
from gxpo.rollouts.episodes import Play
from gxpo.rollouts.replay import Remembers, ReplayBuffer, as_replay, choose, last_failed, side_by_side, without


@part("retry_until_solved", stage="rollout")
@dataclass(frozen=True)
class RetryUntilSolved(Remembers, Rollout):
    """Attempts in stages of `stage_size`, up to `group_size`: a task leaves after the first stage with a success.

    With S stages of k, a group has k, 2k, ... or S k members (the last stage may be smaller); all its attempts are
    compared. Where none of them has succeeded and successes of earlier steps are stored, one of those takes the place
    of the last attempt known to have failed (charged as discarded): origin "replay", with the log-probs, policy version
    and outcome of its own.

    group_size  the most attempts a task
    stage_size  attempts a stage; `group_size` itself is one stage: independent attempts
    reuse       whether a stored success may stand in a group without any
    choice      which stored success: "random", equally likely, a function of (seed, step, group), or "recent"
    coef        weight of the reused row; 0: it is in the group's statistics and in denominators, and has no gradient
    max_stored  successes of a task that are stored, the newest
    max_tasks   tasks with stored successes, those last used (see `ReplayBuffer`)

    `success` decides, never the shaped outcome. The number of attempts depends on how they went: the rate of success of
    tasks that left early is biased upwards, and tasks of all-right first stages still have no contrast. A stage draws
    its random numbers as a task that is drawn again does. The ratio of a reused row is the objective's
    `objective.ratio_over`: "proximal" evaluates it anew, "behaviour" takes the recorded log-probs.

    Source: AR3PO, arXiv 2509.25808.
    """

    group_size: Count = 8
    stage_size: Count = 4
    reuse: bool = True
    choice: Literal["random", "recent"] = "random"
    coef: Annotated[float, Ge(0)] = 0.0
    max_stored: Count = 8
    max_tasks: Count = 10_000
    team: str = ""
    buffer: ReplayBuffer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffer", ReplayBuffer(self.max_stored, self.max_tasks))
        if not self.stage_size <= self.group_size:
            raise ConfigError(
                f"rollout.stage_size is {self.stage_size}; it must be from 1 to rollout.group_size={self.group_size}"
            )

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        return [draw.attempts(self.stage_size) for draw in draws]

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts]:
        size = min(self.stage_size, self.group_size - len(rounds) * self.stage_size)
        rounds[-1].scored.need_verdicts("rollout retry_until_solved")
        left = set(_unsolved(rounds))
        unsolved = [draw for draw in play.drawn if draw.group in left] if size > 0 else []
        again = play.draws([draw.task for draw in unsolved])
        return [new.attempts(size, group=draw.group) for draw, new in zip(unsolved, again, strict=True)]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        forest = Forest.concat([r.scored for r in rounds])
        self.buffer.hold(forest.select(forest.success >= 1))
        return side_by_side(self._helped(forest, _unsolved(rounds), play.session))

    def _helped(self, forest: Forest, unsolved: Sequence[str], session: Session) -> Forest:
        """The forest with a stored success in each unsolved group of a task that has one."""
        task_of = dict(zip(forest.group, forest.task, strict=True))
        replaced, records = [], []
        for group in unsolved if self.reuse else ():
            stored, place = self.buffer.of(task_of[group]), last_failed(forest, group)
            if stored and place is not None:
                replaced.append(place)
                key = (session.seed, session.step, group)
                (i,) = choose([r["reward"] for r in stored], 1, self.choice, key)
                records.append(as_replay(stored[i], group=group, id=f"{group}/replay", weight=self.coef))
        if not records:
            return forest
        session.budget.discarded += len(replaced)
        return Forest.concat([without(forest, replaced), Forest.from_records(records)])


def _unsolved(rounds: Sequence[Round]) -> list[str]:
    """Names of the groups without a success."""
    verdicts = [found for r in rounds for found in zip(r.scored.group, r.scored.success.tolist(), strict=True)]
    solved = {group for group, verdict in verdicts if verdict >= 1}
    return [group for group in rounds[0].groups if group not in solved]
