"""Hints for a task: its own, or parts of its worked solution (Scaf-GRPO, GHPO)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from gxpo.base.errors import TaskError
from gxpo.parts.protocols import Task

Cut = Literal["words", "characters"]
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
