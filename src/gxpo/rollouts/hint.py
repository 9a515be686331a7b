"""Tasks that a whole group got wrong are tried again with a hint in the prompt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gxpo.errors import ConfigError, TaskError, one_of
from gxpo.forest import Forest
from gxpo.protocols import Request, Session, StreamKey, Task
from gxpo.rollouts.again import action, check_template, groups_all_wrong, need_single_turn, record, reworded
from gxpo.rollouts.build import name_draws
from gxpo.rollouts.independent import Independent

Solution = Callable[[Task], "str | None"]


def prefix(text: str, fraction: float, cut: str = "words") -> str:
    """The first round(`fraction` x length) characters; halves are rounded to the even number.

    cut  "words": of these, what comes before a word that would be cut in two, unless that is nothing | "characters"

    >>> [prefix("48/2 = 24 in May", f) for f in (0.25, 0.5, 0.75)], prefix("48/2 = 24 in May", 0.5, "characters")
    (['48/2', '48/2 =', '48/2 = 24 in'], '48/2 = 2')
    """
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
            f"task {task.id!r} has no hints: give info['hints'], [] for none, or a worked solution as info['solution']"
        )
    return [prefix(worked, f, cut) for f in fractions]


@dataclass(frozen=True)
class _Ladder:
    """What both ways of hinting share: fields, and how an attempt under a hint is made and recorded."""

    group_size: int = 8
    warmup_steps: int = 0
    fractions: Sequence[float] = field(default_factory=lambda: [0.25, 0.5, 0.75])
    template: str = "{prompt}\nThe solution begins like this; you may go on from here:\n{hint}"
    cut: Literal["words", "characters"] = "words"

    provides = ("states",)
    single_turn = True

    def check_task(self, task: Task, solution: Solution) -> None:
        """TaskError where there are no hints for a task: known before the first step, wanted after the warm-up."""
        self._hints(task, solution)

    def _hints(self, task: Task, solution: Solution) -> list[str]:
        return hints_of(task, solution, self.fractions, self.cut)

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise ConfigError(f"rollout.group_size must be at least 1, not {self.group_size!r}")
        if not self.fractions or not all(0 <= f <= 1 for f in self.fractions):
            raise ConfigError(f"rollout.fractions are shares of a solution, from 0 to 1, not {self.fractions!r}")
        check_template("rollout.template", self.template, ("prompt", "hint"))
        one_of("rollout.cut", self.cut, ("words", "characters"))

    def _unaided(
        self, tasks: Sequence[Task], session: Session, name: str
    ) -> tuple[Forest, dict[str, tuple[Task, str]]]:
        """Attempts without a hint, and of the groups to be tried again the task and the name of its draw."""
        need_single_turn(session, name, "puts hints into the prompts")
        forest = Independent(self.group_size).grow(tasks, session)
        if session.step <= self.warmup_steps:
            return forest, {}
        forest = session.score(forest)
        draws = zip(tasks, name_draws(tasks, Counter()), strict=True)
        drawn = {f"s{session.step}/{draw}": (task, draw) for task, draw in draws}
        return forest, {group: drawn[group] for group in groups_all_wrong(forest, name)}

    def _attempts(self, session: Session, asked: Sequence[tuple[Task, str, int, str]], samples: int) -> Forest:
        """`samples` attempts at each (task, draw, level, hint), scored.

        The prompt of a record is the task's own, `sampled_under` holds the hinted one. Attempt i under the hint of a
        level has the stream (seed, step, draw, i, path (level,)).
        """
        contexts = [session.encode(reworded(task, self.template, hint=hint)) for task, _, _, hint in asked]
        requests = [
            Request(
                context,
                tuple(StreamKey(session.seed, session.step, draw, i, path=(level,)) for i in range(samples)),
            )
            for context, (_, draw, level, _) in zip(contexts, asked, strict=True)
        ]
        records: list[dict[str, Any]] = []
        for (task, draw, level, _), request, group in zip(asked, requests, session.sample(requests), strict=True):
            name, plain = f"s{session.step}/{draw}", list(session.encode(task))
            for i, completion in enumerate(group):
                turn = {**action(completion), "state": task.id, "sampled_under": list(request.prompt)}
                records.append(
                    record(
                        task,
                        name,
                        f"{name}/hint{level}/{i}",
                        session.sampling,
                        prompt=plain,
                        turns=[turn],
                        truncated=completion.finish == "length",
                        origin="hint",
                        info={"hint": level},
                    )
                )
        return session.score(Forest.from_records(records))


@dataclass(frozen=True)
class LeastHint(_Ladder):
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

    A hinted attempt is trained under the task's own prompt unless `objective.context` is "sampled".
    """

    warmup_steps: int = 50
    fractions: Sequence[float] = field(default_factory=lambda: [0.25, 0.5, 0.75, 1.0])
    template: str = "{prompt}\nHints: {hint}"

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        forest, wrong = self._unaided(tasks, session, "least_hint")
        asked = [
            (task, draw, level, hint)
            for task, draw in wrong.values()
            for level, hint in enumerate(self._hints(task, session.solution), 1)
        ]
        if not asked:
            return forest
        hinted = self._attempts(session, asked, 1)
        least: dict[str, int] = {}
        for i, (group, right) in enumerate(zip(hinted.group, (hinted.success > 0).tolist(), strict=True)):
            if right:
                least.setdefault(group, forest.n_trajectories + i)
        session.budget.discarded += hinted.n_trajectories
        first = {group: row for row, group in reversed(list(enumerate(forest.group)))}
        rows = [least.get(g, i) if i == first[g] else i for i, g in enumerate(forest.group)]
        return Forest.concat([forest, hinted]).select(rows)


@dataclass(frozen=True)
class GrowingHint(_Ladder):
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

    A hinted attempt is trained under the task's own prompt unless `objective.context` is "sampled".
    """

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        forest, wrong = self._unaided(tasks, session, "growing_hint")
        hints = {group: self._hints(task, session.solution) for group, (task, _) in wrong.items()}
        level = 1
        while asked := [(*wrong[g], level, hints[g][level - 1]) for g in wrong if len(hints[g]) >= level]:
            hinted = self._attempts(session, asked, self.group_size)
            session.budget.discarded += hinted.n_trajectories
            forest = _regrouped(forest, hinted)
            wrong = {g: wrong[g] for g in groups_all_wrong(hinted, "growing_hint")}
            level += 1
        return forest


def _regrouped(forest: Forest, newer: Forest) -> Forest:
    """The forest in which the groups of `newer` stand in the place of those of the same name."""
    both = Forest.concat([forest, newer])
    members: dict[str, dict[bool, list[int]]] = {}
    for i, group in enumerate(both.group):
        members.setdefault(group, {}).setdefault(i >= forest.n_trajectories, []).append(i)
    return both.select([i for found in members.values() for i in found.get(True, found.get(False, []))])
