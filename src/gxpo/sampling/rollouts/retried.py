"""Attempts in rounds, by functions: what is attempted again (`ways`), and what of it is kept (`keeping`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from gxpo.forest.forest import Forest
from gxpo.parts.definition import show
from gxpo.parts.functions import Formula
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.build import Attempts, Draw, Limit
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.hint import Solution
from gxpo.sampling.rollouts.ways import Ask, Stored


@dataclass(frozen=True, kw_only=True)
class Retried(Formula, Rollout):
    """Base of rollouts that attempt groups again, in rounds, until `how` stops; what they store is a subclass's affair.

    group_size    attempts a task
    when          which groups: "all_wrong" in the newest round, where an attempt is known to be wrong and none to be
                  right; "unsolved", without a known success in it; "always"
    how           in `sampling.rollouts.ways` by name, `file.py:function` or a function: the attempts of the next round
    keep          the same, in `rollouts.keeping`: the step's rollouts of those of all rounds; what is left out is
                  charged to `session.budget.discarded`. Keyword-only parameters of both are options, `rollout.NAME`
    warmup_steps  steps in which nothing is attempted again

    `success` decides, never the shaped outcome. In an environment an attempt is an episode.
    """

    group_size: Count = 8
    when: Literal["all_wrong", "unsolved", "always"] = "always"
    how: Any = "once"
    keep: Any = "everything"
    warmup_steps: Limit = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "how": ("gxpo.sampling.rollouts.ways", False),
        "keep": ("gxpo.sampling.rollouts.keeping", False),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "allows", getattr(self.how, "allows", {}))
        if (fits := getattr(self.how, "fits", None)) is not None:
            self.apply(fits, [self.group_size])

    @property
    def stored(self) -> Stored | None:
        """What is stored of each task, where a way may read it."""
        return None

    def check_task(self, task: Task, solution: Solution) -> None:
        """TaskError where `how` has nothing to attempt a task again with."""
        if (check := getattr(self.how, "check_task", None)) is not None:
            self.apply(check, [task, solution])

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        return self.apply(self.how, [Ask([], draws, play, self.group_size, self.stored)])

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts]:
        if len(rounds) == getattr(self.how, "rounds", None) or play.session.step <= self.warmup_steps:
            return []
        draws = self._again(rounds[-1], play)
        return self.apply(self.how, [Ask(rounds, draws, play, self.group_size, self.stored)]) if draws else []

    def _again(self, newest: Round, play: Play) -> list[Draw]:
        """Draws whose groups are to be attempted again."""
        if self.when == "always":
            return play.drawn
        wrong = newest.all_wrong(show(self)) if self.when == "all_wrong" else unsolved(newest.scored, show(self))
        return [draw for draw in play.drawn if draw.group in wrong]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        """The step's own rollouts."""
        forest: Forest = self.apply(self.keep, [rounds, play, self.group_size])
        play.session.budget.discarded += sum(len(r.episodes) for r in rounds) - forest.n_trajectories
        return forest


def unsolved(forest: Forest, rollout: str) -> list[str]:
    """Names of the groups without a known success, in order. ConfigError where the reward gives no verdicts at all."""
    forest.need_verdicts(f"rollout {rollout}")
    solved = {group for group, verdict in zip(forest.group, forest.success.tolist(), strict=True) if verdict >= 1}
    return [group for group in dict.fromkeys(forest.group) if group not in solved]
