"""Attempts in rounds: hints or references on failure (Scaf-GRPO, GHPO, GCPO), stages (AR3PO), drafts (iGRPO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge

from gxpo.forest.forest import Forest
from gxpo.parts.definition import show
from gxpo.parts.protocols import Session
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.base import Count, Round
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.replay import Remembers, ReplayBuffer, as_replay, choose, last_failed, side_by_side, without
from gxpo.sampling.rollouts.retried import Retried, unsolved


@part("again", stage="rollout")
@dataclass(frozen=True)
class Again(Remembers, Retried):
    """Attempts at each task in rounds: groups without a success, or all, are attempted again, until `how` stops.

    group_size    attempts a task
    when          which groups: "all_wrong" in the newest round, where an attempt is known to be wrong and none to be
                  right; "unsolved", without a known success in it; "always"
    how           in `sampling.rollouts.ways` by name, `file.py:function` or a function: the attempts of the next round
    keep          the same, in `rollouts.keeping`: the step's rollouts of those of all rounds; what is left out is
                  charged to `session.budget.discarded`. Keyword-only parameters of both are options, `rollout.NAME`
    warmup_steps  steps in which nothing is attempted again
    reuse         in a group without a success a stored one of earlier steps takes the place of the last attempt known
                  to have failed: origin "replay", with the log-probs, policy version and outcome of its own
    choice        which stored success: "random", equally likely, a function of (seed, step, group), or "recent"
    coef          weight of the reused row; 0: it is in the group's statistics and in denominators, and has no gradient
    max_stored    successes of a task that are stored, the newest; `max_tasks`: see `ReplayBuffer`

    `success` decides, never the shaped outcome. In an environment an attempt is an episode; with `team` it is a team's.

    With these settings this is, among others:
      Scaf-GRPO  how each_hint, keep right_for_first, warmup_steps 50
      GHPO       how next_hint, keep newest
      GCPO       how reference, keep for_last_failure
      AR3PO      when unsolved, how more, keep everything, reuse true
      iGRPO      when always, how best_draft, keep newest
      TTRL       when always, how voters, keep numbered
      ARPO       how once, reuse true, coef 1 (of GUI agents)
    """

    group_size: Count = 8
    when: Literal["all_wrong", "unsolved", "always"] = "all_wrong"
    how: Any = "more"
    reuse: bool = False
    choice: Literal["random", "recent"] = "random"
    coef: Annotated[float, Ge(0)] = 0.0
    max_stored: Count = 8
    max_tasks: Count = 10_000
    team: str = ""
    buffer: ReplayBuffer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "buffer", ReplayBuffer(self.max_stored, self.max_tasks))

    @property
    def remembers(self) -> bool:
        """Whether a checkpoint holds stored successes."""
        return self.reuse

    @property
    def stored(self) -> ReplayBuffer | None:
        return self.buffer if self.reuse else None

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        forest = super().merge(rounds, play)
        return self._with_stored(forest, play.session) if self.reuse else forest

    def _with_stored(self, forest: Forest, session: Session) -> Forest:
        """The forest with a stored success in each unsolved group of a task that has one."""
        self.buffer.hold(forest.select(forest.success >= 1))
        task_of = dict(zip(forest.group, forest.task, strict=True))
        replaced, records = [], []
        for group in unsolved(forest, show(self)):
            stored, place = self.buffer.of(task_of[group]), last_failed(forest, group)
            if stored and place is not None:
                replaced.append(place)
                (i,) = choose([r["reward"] for r in stored], 1, self.choice, (session.seed, session.step, group))
                records.append(as_replay(stored[i], group=group, id=f"{group}/replay", weight=self.coef))
        if not records:
            return forest
        session.budget.discarded += len(replaced)
        return side_by_side(Forest.concat([without(forest, replaced), Forest.from_records(records)]))
