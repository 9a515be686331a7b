"""Repeated attempts in rounds: hints or references after failure (Scaf-GRPO, GHPO, GCPO), stages, drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from gxpo.forest.forest import Forest
from gxpo.parts.definition import show
from gxpo.parts.functions import Formula
from gxpo.parts.protocols import Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Fork
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.build import Limit
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.replay_buffer import (
    Remembers,
    ReplayBuffer,
    as_replay,
    choose,
    drop_rows,
    last_failed,
    side_by_side,
)
from gxpo.sampling.rollouts.ways import Ask, Stored
from gxpo.sampling.rollouts.wording import Solution


@dataclass(frozen=True, kw_only=True)
class RetryRounds(Formula, Rollout):
    """Base class of rollouts that attempt groups again, in rounds, until `retry_with` returns no attempts.

    Options: see `Retry`, which also stores successes.

    `success` decides, never the shaped outcome. In an environment an attempt is an episode.
    """

    group_size: Count = 8
    retry_if: Literal["all_wrong", "unsolved", "always"] = "always"
    retry_with: Any = "once"
    keep: Any = "everything"
    warmup_steps: Limit = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "retry_with": ("gxpo.sampling.rollouts.ways", False),
        "keep": ("gxpo.sampling.rollouts.keeping", False),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "allows", getattr(self.retry_with, "allows", {}))
        if (fits := getattr(self.retry_with, "fits", None)) is not None:
            self.apply(fits, [self.group_size])

    @property
    def stored(self) -> Stored | None:
        """Stored rollouts by task that `retry_with` may read; None if this rollout stores none."""
        return None

    def check_task(self, task: Task, solution: Solution) -> None:
        """Raise TaskError if `retry_with` has nothing to attempt this task again with, such as hints."""
        if (check := getattr(self.retry_with, "check_task", None)) is not None:
            self.apply(check, [task, solution])

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts | Fork]:
        return self.apply(self.retry_with, [Ask([], draws, play, self.group_size, self.stored)])

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts | Fork]:
        if len(rounds) == getattr(self.retry_with, "rounds", None) or play.session.step <= self.warmup_steps:
            return []
        # `retry_with` is not asked retry_if no group needs it: it may be costly, as an expert is
        draws = self._draws_to_retry(rounds[-1], play)
        return self.apply(self.retry_with, [Ask(rounds, draws, play, self.group_size, self.stored)]) if draws else []

    def _draws_to_retry(self, newest: Round, play: Play) -> list[Draw]:
        """Return the draws whose groups are to be attempted again."""
        if self.retry_if == "always":
            return play.step_draws
        wrong = (
            newest.all_wrong(show(self)) if self.retry_if == "all_wrong" else unsolved_groups(newest.scored, show(self))
        )
        return [draw for draw in play.step_draws if draw.group in wrong]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        """Select the step's rollouts from all rounds, and charge the others as discarded."""
        forest: Forest = self.apply(self.keep, [rounds, play, self.group_size])
        play.session.budget.discarded += sum(len(r.episodes) for r in rounds) - forest.n_trajectories
        return forest


def unsolved_groups(forest: Forest, rollout: str) -> list[str]:
    """Return the names of the groups without a known success, in order; ConfigError if the reward gives no verdicts."""
    forest.need_verdicts(f"rollout {rollout}")
    solved_groups = {
        group for group, verdict in zip(forest.group, forest.success.tolist(), strict=True) if verdict >= 1
    }
    return [group for group in dict.fromkeys(forest.group) if group not in solved_groups]


@part("retry", stage="rollout")
@dataclass(frozen=True)
class Retry(Remembers, RetryRounds):
    """Attempts at each task in rounds: groups without a success, or all, are attempted again until `retry_with` stops.

    group_size    attempts a task
    retry_if      groups to attempt again: "all_wrong", with a known failure and no known success in the newest round;
                  "unsolved", without a known success in it; "always"
    retry_with    function that returns the attempts of the next round: a name in `sampling.rollouts.ways`,
                  `file.py:function`, or a function
    keep          function that selects the step's rollouts from those of all rounds: a name in `rollouts.keeping`, or
                  as above; what it leaves out is charged to `session.budget.discarded`. Keyword-only parameters of
                  both functions are options, `rollout.NAME`
    warmup_steps  steps in which nothing is attempted again
    reuse         in a group without a success, put a stored success of earlier steps in the place of the last known
                  failure: origin "replay", with its own log-probs, policy version and outcome
    choice        stored success to reuse: "random", equally likely, a function of (seed, step, group), or "recent"
    coef          weight of the reused row; 0: it is in the group's statistics and in denominators, without a gradient
    max_stored    most successes stored of a task, the newest ones; `max_tasks`: see `ReplayBuffer`

    `success` decides, never the shaped outcome. In an environment an attempt is an episode; with `team` it is a team's.

    With these settings this is, among others:
      Scaf-GRPO  retry_with each_hint, keep right_for_first, warmup_steps 50
      GHPO       retry_with next_hint, keep newest
      GCPO       retry_with reference, keep for_last_failure
      AR3PO      retry_if unsolved, retry_with more, keep everything, reuse true
      iGRPO      retry_if always, retry_with best_draft, keep newest
      TTRL       retry_if always, retry_with voters, keep numbered
      ARPO       retry_with once, reuse true, coef 1 (of GUI agents)
    """

    group_size: Count = 8
    retry_if: Literal["all_wrong", "unsolved", "always"] = "all_wrong"
    retry_with: Any = "more"
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
        """True if stored successes are part of the checkpoint."""
        return self.reuse

    @property
    def stored(self) -> ReplayBuffer | None:
        return self.buffer if self.reuse else None

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        forest = super().merge(rounds, play)
        return self._with_stored(forest, play.session) if self.reuse else forest

    def _with_stored(self, forest: Forest, session: Session) -> Forest:
        """Put a stored success into each unsolved group of a task that has one."""
        self.buffer.hold(forest.select(forest.success >= 1))
        task_of = dict(zip(forest.group, forest.task, strict=True))
        # a success takes the place of a known failure, never of an unscored attempt: the group keeps its size
        replaced_rows, records = [], []
        for group in unsolved_groups(forest, show(self)):
            successes, failed_row = self.buffer.of(task_of[group]), last_failed(forest, group)
            if successes and failed_row is not None:
                replaced_rows.append(failed_row)
                (i,) = choose([r["reward"] for r in successes], 1, self.choice, (session.seed, session.step, group))
                records.append(as_replay(successes[i], group=group, id=f"{group}/replay", weight=self.coef))
        if not records:
            return forest
        session.budget.discarded += len(replaced_rows)
        return side_by_side(Forest.concat([drop_rows(forest, replaced_rows), Forest.from_records(records)]))
