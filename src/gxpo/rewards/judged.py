"""LLM-judge rewards: rubric scores, or pairwise wins within the group."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.judges import Judge, ask_all
from gxpo.rewards.group_level import Failure
from gxpo.verdicts import care, ending, fenced, marker, scaled

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Task

VERDICT = re.compile(r"(?:answer\s+)?(A|B|TIE)", re.IGNORECASE)
RUBRIC = "How good is the answer? Judge whether it is correct and complete."


def prompt_of(task: Task) -> str:
    """Prompt of a task, as text."""
    prompt = task.prompt
    if isinstance(prompt, str):
        return prompt
    return "\n".join(str(m.get("content") or "") if isinstance(m, Mapping) else str(m) for m in prompt)


def read_score(answer: str, low: float, high: float) -> float:
    """Parse a score from the last line `Score: N`, a JSON object's "score", or an answer that is only a number
    (7, 7/10); ValueError otherwise.

    >>> read_score("Correct but long.\\n**Score:** 8", 0, 10), read_score("7/10", 0, 10)
    (8.0, 7.0)
    """
    return scaled(ending(answer, "score", bare=True), low, high)


def read_preference(answer: str) -> float:
    """Parse a preference: 1 for A, 0 for B, 0.5 for TIE, from the last line `Verdict: A`, a JSON object's "verdict", or
    an answer that is nothing else; ValueError otherwise.

    >>> read_preference("Both try, B errs.\\nVerdict: A"), read_preference("TIE")
    (1.0, 0.5)
    """
    said = ending(answer, "verdict", bare=True)
    found = VERDICT.fullmatch(said.strip(" .[]()\"'")) if isinstance(said, str) else None
    if found is None:
        raise ValueError(f"neither A, B nor TIE as the verdict at the end of {answer[-80:]!r}")
    return {"A": 1.0, "B": 0.0, "TIE": 0.5}[found[1].upper()]


class _Asking:
    """Base of judged rewards: concurrent questions; failures are kept for the trajectories left unscored."""

    judge: Judge
    workers: int
    _failures: list[Failure]

    def failures(self) -> list[Failure]:
        """Return and clear the failures since the last call, one per trajectory."""
        found = list(self._failures)
        self._failures.clear()
        return found

    def _answers(
        self, questions: Sequence[Sequence[Mapping[str, str]]], read: Callable[[str], float]
    ) -> list[float | Failure]:
        """Parsed answer to each question; equal questions are asked once."""
        keys = [tuple((m["role"], m["content"]) for m in question) for question in questions]
        first = dict(zip(keys, questions, strict=True))  # in the order in which they are asked first
        said = dict(zip(first, ask_all(self.judge, list(first.values()), self.workers), strict=True))
        return [_understood(said[key], read) for key in keys]


def _understood(said: str | Failure, read: Callable[[str], float]) -> float | Failure:
    if isinstance(said, tuple):
        return said
    try:
        return read(said)
    except ValueError as error:
        return ("nonsense", f"the judge's answer can't be read: {error}")


@dataclass(eq=False)
class Rubric(_Asking):
    """{"judge": [R]}: (score - low) / (high - low) of a score from `low` to `high` by the judge, for each attempt.

    An answer without a score, or with one out of range, leaves the attempt unscored ("nonsense" in the counts), and so
    does a judge that can't be asked.
    """

    judge: Judge
    rubric: str = RUBRIC
    low: float = 0.0
    high: float = 10.0
    workers: int = 8
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"
    gives = ("judge",)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"judge: low={self.low!r} must be below high={self.high!r}")

    def question(self, text: str, task: Task) -> list[dict[str, str]]:
        """Prompt to the judge."""
        mark = marker(text)
        instructions = (
            f"{self.rubric}\n\nScore the answer from {self.low:g} (worst) to {self.high:g} (best). "
            f"{care('The answer is', mark)} End with a last line `Score: N` and nothing after it."
        )
        shown = f"# Task\n{prompt_of(task)}\n\n# Answer\n{fenced(text, mark)}"
        return [{"role": "user", "content": f"{instructions}\n\n{shown}"}]

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        questions = [self.question(text, task) for text, task in zip(texts, tasks, strict=True)]
        said = self._answers(questions, lambda answer: read_score(answer, self.low, self.high))
        self._failures += [x for x in said if isinstance(x, tuple)]
        value = [math.nan if isinstance(x, tuple) else (x - self.low) / (self.high - self.low) for x in said]
        return {"judge": torch.tensor(value, dtype=torch.float64)}


@dataclass(eq=False)
class Pairwise(_Asking):
    """{"judge": [R]}: win rate of an attempt in comparisons within its group, a tie counting half.

    pairs  "all": every pair of the group, G (G - 1) / 2; "first": all against the first attempt, G - 1, whose own
           share is the mean of what it has against all others

    Each pair is asked in both orders, and each order counts half, so that a judge that prefers a place gives both 1/2.
    A pair with an order that fails counts for neither; an attempt without a single pair is unscored, and counted with
    the first of its failures. So is the only attempt of a group: there is none to compare it with. Attempts that are
    not `compared` are no opponents; they are measured against those that are.
    """

    judge: Judge
    rubric: str = RUBRIC
    pairs: Literal["all", "first"] = "all"
    workers: int = 8
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"
    gives = ("judge",)

    def __post_init__(self) -> None:
        if self.pairs not in ("all", "first"):
            raise ConfigError(f"judge: pairs is 'all' or 'first', not {self.pairs!r}")

    def question(self, first: str, second: str, task: Task) -> list[dict[str, str]]:
        """Prompt to the judge."""
        mark = marker(first, second)
        instructions = (
            f"{self.rubric}\n\nWhich answer is better? {care('The answers are', mark)} "
            "End with a last line `Verdict: A`, `Verdict: B` or `Verdict: TIE` and nothing after it."
        )
        shown = f"# Task\n{prompt_of(task)}\n\n# Answer A\n{fenced(first, mark)}\n\n# Answer B\n{fenced(second, mark)}"
        return [{"role": "user", "content": f"{instructions}\n\n{shown}"}]

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        matches = self._matches(forest)
        orders = [(i, j) for i, j in matches] + [(j, i) for i, j in matches]
        said = self._answers([self.question(texts[i], texts[j], tasks[i]) for i, j in orders], read_preference)
        won: list[list[float]] = [[] for _ in texts]
        broken: list[list[Failure]] = [[] for _ in texts]
        compared = forest.compared.tolist()
        for (i, j), there, back in zip(matches, said, said[len(matches) :], strict=False):
            if isinstance(there, tuple) or isinstance(back, tuple):
                failure = there if isinstance(there, tuple) else back
                assert isinstance(failure, tuple)
                broken[i].append(failure)
                broken[j].append(failure)
                continue
            share = (there + 1.0 - back) / 2
            if compared[j]:
                won[i].append(share)
            if compared[i]:
                won[j].append(1.0 - share)
        for mine, theirs in zip(won, broken, strict=True):
            if not mine:
                self._failures.append(
                    theirs[0] if theirs else ("nonsense", "an attempt has nobody to be compared with")
                )
        return {"judge": torch.tensor([sum(w) / len(w) if w else math.nan for w in won], dtype=torch.float64)}

    def _matches(self, forest: Forest) -> list[tuple[int, int]]:
        members: dict[str, list[int]] = {}
        for r, group in enumerate(forest.group):
            members.setdefault(group, []).append(r)
        compared = forest.compared.tolist()
        out: list[tuple[int, int]] = []
        for rows in members.values():
            pairs = list(combinations(rows, 2))
            if self.pairs == "first":
                anchor = next((r for r in rows if compared[r]), None)
                pairs = [(i, j) for i, j in pairs if anchor in (i, j)]
            out += [(i, j) for i, j in pairs if compared[i] or compared[j]]
        return out
