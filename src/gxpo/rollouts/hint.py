"""Hints on failure (Scaf-GRPO, GHPO): tasks that a whole group got wrong are tried again with part of a solution."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gxpo.definition import show
from gxpo.errors import ConfigError, TaskError
from gxpo.forest import Forest
from gxpo.protocols import Task
from gxpo.registry import part
from gxpo.rollouts.again import Wording, check_template
from gxpo.rollouts.base import Count, Rollout, Round
from gxpo.rollouts.build import Attempts, Draw
from gxpo.rollouts.episodes import Play
from gxpo.rollouts.reference import solutions_of

Solution = Callable[[Task], "str | None"]


def prefix(text: str, fraction: float, cut: str = "words") -> str:
    """The first round(`fraction` x length) characters; halves are rounded to the even number.

    cut  "words": of these, what comes before a word that would be cut in two, unless that is nothing | "characters" |
         "lines": whole lines, at least one

    >>> [prefix("48/2 = 24 in May", f) for f in (0.25, 0.5, 0.75)], prefix("48/2 = 24 in May", 0.5, "characters")
    (['48/2', '48/2 =', '48/2 = 24 in'], '48/2 = 2')
    """
    if cut == "lines":
        lines = text.splitlines()
        return "\n".join(lines[: max(1, round(fraction * len(lines)))])
    n = round(fraction * len(text))
    if cut == "characters" or n >= len(text):
        return text[:n]
    whole = text[:n] if text[n].isspace() else re.sub(r"\S+$", "", text[:n])
    return whole.rstrip() or text[:n]


def hints_of(task: Task, solution: Solution, fractions: Sequence[float], cut: str = "words") -> list[str]:
    """Hints for a task, from the least to the most.

    These are `task.info["hints"]`: texts, or tiers, which are lists of texts of which each is shown after those before
    it in its tier, with a space between. Without that key they are the `prefix`es of `solution(task)`. An empty list
    says that there are none. TaskError where there is neither.

    >>> hints_of(Task("a", "?", info={"hints": [["think", "of sums"], ["carry the one"]]}), None, ())
    ['think', 'think of sums', 'carry the one']
    """
    if "hints" in task.info:
        given = task.info["hints"]
        tiers = [[x] if isinstance(x, str) else x for x in given] if isinstance(given, list | tuple) else [None]
        if not all(isinstance(tier, list | tuple) and all(isinstance(x, str) for x in tier) for tier in tiers):
            raise TaskError(f"task {task.id!r}: info['hints'] is a list of texts, or of lists of texts, not {given!r}")
        return [" ".join(tier[: i + 1]) for tier in tiers if tier for i in range(len(tier))]
    worked = solution(task)
    if worked is None:
        raise TaskError(
            f"task {task.id!r} has no hints: give info['hints'], [] for none, or a worked solution as info['solution'] "
            "(an environment's is the way of its expert())"
        )
    return [prefix(worked, f, cut) for f in fractions]


class _Hints(Rollout):
    """What both ways of hinting share: fields, and attempts under a hint."""

    group_size: Count
    warmup_steps: int
    fractions: Sequence[float]
    template: str
    cut: Literal["words", "characters"]

    def check_task(self, task: Task, solution: Solution) -> None:
        """TaskError where there are no hints for a task: known before the first step, wanted after the warm-up."""
        hints_of(task, solution, self.fractions, self.cut)

    def __post_init__(self) -> None:
        if not self.fractions or not all(0 <= f <= 1 for f in self.fractions):
            raise ConfigError(f"rollout.fractions are shares of a solution, from 0 to 1, not {self.fractions!r}")
        check_template("rollout.template", self.template, ("prompt", "hint"))

    def _wrong(self, newest: Round, play: Play) -> list[Draw]:
        """Draws to be tried again."""
        wrong = newest.all_wrong(show(self)) if play.session.step > self.warmup_steps else ()
        return [draw for draw in play.drawn if draw.group in wrong]

    def _hints(self, draws: Sequence[Draw], play: Play) -> list[list[str]]:
        """Of each draw."""
        solution = solutions_of([d.task for d in draws if "hints" not in d.task.info], play.session)
        cut = "lines" if play.world else self.cut  # no half of an action
        return [hints_of(draw.task, solution, self.fractions, cut) for draw in draws]

    def _under(self, draw: Draw, level: int, hint: str, samples: int) -> Attempts:
        """Attempts under a hint: attempt i has the stream (seed, step, draw, i, path (level,))."""
        wording = Wording(self.template, {"hint": hint})
        return draw.attempts(
            samples, path=(level,), label=f"hint{level}", wording=wording, hidden=True, origin="hint",
            info={"hint": level},
        )  # fmt: skip


@part("least_hint", stage="rollout")
@dataclass(frozen=True)
class LeastHint(_Hints):
    """In a group that is all wrong, the first attempt gives way to one that is right with the least hint that does it.

    After `warmup_steps`, a task whose attempts are all wrong by `success` is tried once under each of its hints
    (`hints_of`), all in one batch. Of those that are right the one with the least hint stands in the place of the
    group's first attempt, with origin "hint" and its level, from 1, as info["hint"]. Where none is right the group
    stays as it was. What is left out is charged to `session.budget.discarded`.

    group_size    attempts a task
    warmup_steps  steps in which no hint is given (Scaf-GRPO: 50)
    fractions     shares of the worked solution, by length, where a task brings no hints of its own
    template      where the hint goes; of a chat, in the user's last message. "{prompt}{hint}" for a policy that goes on
                  with what it finds, as the tiny model, and reads no instructions
    cut           of a solution, see `prefix`

    A hinted attempt is trained under the task's own prompt unless `objective.context` is "sampled". In an environment
    the hint stands in the message that begins each context, and the solution is its expert's actions, a line
    each, of which whole ones are shown.
    """

    group_size: Count = 8
    warmup_steps: int = 50
    fractions: Sequence[float] = field(default_factory=lambda: [0.25, 0.5, 0.75, 1.0])
    template: str = "{prompt}\nHints: {hint}"
    cut: Literal["words", "characters"] = "words"
    team: str = ""

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts]:
        wrong = self._wrong(rounds[0], play) if len(rounds) == 1 else []
        hints = zip(wrong, self._hints(wrong, play), strict=True)
        return [self._under(draw, level, hint, 1) for draw, given in hints for level, hint in enumerate(given, 1)]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        if len(rounds) == 1:
            return rounds[0].forest
        forest, hinted = (r.scored for r in rounds)
        least: dict[str, int] = {}
        for i, (group, right) in enumerate(zip(hinted.group, (hinted.success > 0).tolist(), strict=True)):
            if right:
                least.setdefault(group, forest.n_trajectories + i)
        play.session.budget.discarded += hinted.n_trajectories
        first = {group: row for row, group in reversed(list(enumerate(forest.group)))}
        rows = [least.get(g, i) if i == first[g] else i for i, g in enumerate(forest.group)]
        return Forest.concat([forest, hinted]).select(rows)


@part("growing_hint", stage="rollout")
@dataclass(frozen=True)
class GrowingHint(_Hints):
    """A group that is all wrong is attempted again as a whole, with a hint that grows until an attempt is right.

    After `warmup_steps`, all attempts at a task that are all wrong by `success` are made anew under its first hint
    (`hints_of`), if they are all wrong again under the second, and so on. The newest attempts are the group, right or
    wrong, with origin "hint" and the hint's level, from 1, as info["hint"]; those before are charged to
    `session.budget.discarded`.

    group_size    attempts a task
    warmup_steps  steps in which no hint is given (GHPO: 0)
    fractions     shares of the worked solution, by length, where a task brings no hints of its own
    template      where the hint goes; of a chat, in the user's last message. "{prompt}{hint}" for a policy that goes on
                  with what it finds, as the tiny model, and reads no instructions
    cut           of a solution, see `prefix`

    A hinted attempt is trained under the task's own prompt unless `objective.context` is "sampled". In an environment
    the hint stands in the message that begins each context, and the solution is its expert's actions, a line
    each, of which whole ones are shown.
    """

    group_size: Count = 8
    warmup_steps: int = 0
    fractions: Sequence[float] = field(default_factory=lambda: [0.25, 0.5, 0.75])
    template: str = "{prompt}\nThe solution begins like this; you may go on from here:\n{hint}"
    cut: Literal["words", "characters"] = "words"
    team: str = ""

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts]:
        level, wrong = len(rounds), self._wrong(rounds[-1], play)
        hints = zip(wrong, self._hints(wrong, play), strict=True)
        return [
            self._under(draw, level, given[level - 1], self.group_size) for draw, given in hints if level <= len(given)
        ]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        newest: dict[str, list[int]] = {}
        begin = 0
        for r in rounds:
            rows = range(begin, begin + len(r.episodes))
            begin += len(r.episodes)
            newest |= {group: [] for group in r.groups}
            for row, episode in zip(rows, r.episodes, strict=True):
                newest[episode.group].append(row)
        play.session.budget.discarded += sum(len(r.episodes) for r in rounds[1:])
        if len(rounds) == 1:
            return rounds[0].forest
        return Forest.concat([r.scored for r in rounds]).select([row for rows in newest.values() for row in rows])
