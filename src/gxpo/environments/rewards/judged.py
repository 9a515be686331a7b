"""LLM-judge rewards: rubric scores, tournaments within the group, debates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.base import media
from gxpo.base.errors import ConfigError, one_of
from gxpo.base.judges import Judge, ask_all
from gxpo.base.verdicts import care, ending, fenced, marker, number, numbered, scaled
from gxpo.environments.rewards import tournament
from gxpo.environments.rewards.group_level import Failure
from gxpo.forest.forest import Forest

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task


VERDICT = re.compile(r"(?:answer\s+)?(A|B|TIE)", re.IGNORECASE)
RUBRIC = "How good is the answer? Judge whether it is correct and complete."


def prompt_of(task: Task, judge: Judge | None = None) -> str:
    """Prompt of a task, as text. A picture is its name, as <image 0066bcce>; for a judge that sees (`judge.sees`) it is
    the picture itself, as `media.mark`."""
    prompt = task.prompt
    if isinstance(prompt, str):
        return prompt
    told = media.marked if getattr(judge, "sees", False) else media.text_of
    return "\n".join(told(m.get("content")) if isinstance(m, Mapping) else str(m) for m in prompt)


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
    only: str = "all"

    @property
    def reads_success(self) -> bool:
        """True if it is given the verdicts: it asks about right attempts alone."""
        return self.only == "correct"

    def rows_asked(self, forest: Forest) -> list[int]:
        """Attempts to ask about."""
        if not self.reads_success:
            return list(range(forest.n_trajectories))
        return (forest.success >= 1).nonzero().flatten().tolist()

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

    only  "correct": about attempts that the verifier calls right; wrong ones are not judged and have 0, those without
          a verdict are unscored

    An answer without a score, or with one out of range, leaves the attempt unscored ("nonsense" in the counts), and so
    does a judge that can't be asked.
    """

    judge: Judge
    rubric: str = RUBRIC
    low: float = 0.0
    high: float = 10.0
    workers: int = 8
    only: str = "all"
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"
    gives = ("judge",)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"judge: low={self.low!r} must be below high={self.high!r}")
        one_of("judge: only", self.only, ["all", "correct"])

    def question(self, text: str, task: Task) -> list[dict[str, str]]:
        """Prompt to the judge."""
        mark = marker(text)
        instructions = (
            f"{self.rubric}\n\nScore the answer from {self.low:g} (worst) to {self.high:g} (best). "
            f"{care('The answer is', mark)} End with a last line `Score: N` and nothing after it."
        )
        shown = f"# Task\n{prompt_of(task, self.judge)}\n\n# Answer\n{fenced(text, mark)}"
        return [{"role": "user", "content": f"{instructions}\n\n{shown}"}]

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        rows = self.rows_asked(forest)
        questions = [self.question(texts[r], tasks[r]) for r in rows]
        said = self._answers(questions, lambda answer: read_score(answer, self.low, self.high))
        self._failures += [x for x in said if isinstance(x, tuple)]
        value = unasked(forest) if self.reads_success else [math.nan] * len(texts)
        for r, x in zip(rows, said, strict=True):
            value[r] = math.nan if isinstance(x, tuple) else (x - self.low) / (self.high - self.low)
        return {"judge": torch.tensor(value, dtype=torch.float64)}


def unasked(forest: Forest) -> list[float]:
    """Value of attempts that are not judged: 0 of wrong ones, nan where there is no verdict."""
    return torch.where(forest.success.isnan(), torch.nan, 0.0).tolist()


@dataclass(eq=False)
class Pairwise(_Asking):
    """{"judge": [R]}: rewards of a tournament within each group (`tournament.rewards`).

    compare      who meets whom (`tournament.KINDS`): "all" and "first" pay the share of matches won, a tie counting
                 half, the others the place
    contestants  of places. "texts": attempts of one text are one contestant, which a knockout would part |
                 "attempts": each is one

    Each match is asked in both orders, and each order counts half, so that a judge that prefers a place gives both 1/2.
    A match with an order that fails counts for neither; an attempt without a single known match is unscored, and
    counted with the first of its failures. So is the only attempt of a group: there is none to compare it with. A match
    that a later round asks for again is not asked again. Attempts that are not `compared` are in no tournament: they
    meet each that is (of "first" and "anchor" the first alone), and are paid the share of these matches won.
    """

    judge: Judge
    rubric: str = RUBRIC
    compare: str = "all"
    workers: int = 8
    contestants: str = "texts"
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"
    gives = ("judge",)

    def __post_init__(self) -> None:
        one_of("judge: compare", self.compare, list(tournament.KINDS))
        one_of("judge: contestants", self.contestants, ["texts", "attempts"])

    def question(self, first: str, second: str, task: Task) -> list[dict[str, str]]:
        """Prompt to the judge."""
        prompt = prompt_of(task, self.judge)
        return asked_to_choose(f"{self.rubric}\n\nWhich answer is better?", "answer", first, second, prompt)

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        merges = self.compare not in ("all", "first") and self.contestants == "texts"
        groups, twin = _groups(forest), list(range(len(texts)))  # row that stands for a row
        if merges:
            groups = [(_distinct(rows, texts, twin), others) for rows, others in groups]
        met: dict[tuple[int, int], float | Failure] = {}  # of rows
        alone = self.compare in ("first", "anchor")
        due = [(i, j) for rows, others in groups for i in others for j in (rows[:1] if alone else rows)]
        rounds: list[list[dict[tuple[int, int], float]]] = [[] for _ in groups]
        while True:
            held = [tournament.pairings(self.compare, len(g), r) for (g, _), r in zip(groups, rounds, strict=True)]
            due += [(rows[i], rows[j]) for (rows, _), pairs in zip(groups, held, strict=True) for i, j in pairs]
            self._meet(due, met, texts, tasks)
            if not any(held):
                break
            due = []
            for (rows, _), played, pairs in zip(groups, rounds, held, strict=True):
                if pairs:
                    played.append({(i, j): _share(met[rows[i], rows[j]]) for i, j in pairs})
        value = [math.nan] * len(texts)
        for (rows, others), played in zip(groups, rounds, strict=True):
            for r, paid in zip(rows, tournament.rewards(self.compare, len(rows), played), strict=True):
                value[r] = paid
            for r in others:
                shares = [x for (i, _), x in met.items() if i == r and isinstance(x, float)]
                value[r] = sum(shares) / len(shares) if shares else math.nan
        alike = {head for r, head in enumerate(twin) if head != r}
        for rows, _ in groups:
            if merges and len(rows) == 1 and rows[0] in alike:
                value[rows[0]] = 0.5  # all attempts of the group are one text
        value = [value[head] for head in twin]
        for r in (r for r, x in enumerate(value) if math.isnan(x)):
            broken = [x for pair, x in met.items() if twin[r] in pair and isinstance(x, tuple)]
            self._failures.append(broken[0] if broken else ("nonsense", "an attempt has nobody to be compared with"))
        return {"judge": torch.tensor(value, dtype=torch.float64)}

    def _meet(
        self,
        pairs: Sequence[tuple[int, int]],
        met: dict[tuple[int, int], float | Failure],
        texts: Sequence[str],
        tasks: Sequence[Task],
    ) -> None:
        """Ask for the matches that have not been; what each row of a match has of it, both ways round, goes to
        `met`."""
        fresh = [(i, j) for i, j in dict.fromkeys(pairs) if (i, j) not in met]
        orders = [*fresh, *((j, i) for i, j in fresh)]
        said = self._answers([self.question(texts[i], texts[j], tasks[i]) for i, j in orders], read_preference)
        for (i, j), there, back in zip(fresh, said, said[len(fresh) :], strict=False):
            failed = there if isinstance(there, tuple) else back
            if isinstance(there, float) and isinstance(back, float):
                met[i, j] = (there + 1.0 - back) / 2
                met[j, i] = 1.0 - (there + 1.0 - back) / 2
            elif isinstance(failed, tuple):
                met[i, j] = met[j, i] = failed


def asked_to_choose(question: str, what: str, first: str, second: str, prompt: str) -> list[dict[str, str]]:
    """Prompt that asks which of two texts, called `what`, is better for a task's prompt."""
    mark = marker(first, second)
    instructions = (
        f"{question} {care(f'The {what}s are', mark)} "
        "End with a last line `Verdict: A`, `Verdict: B` or `Verdict: TIE` and nothing after it."
    )
    named = what.capitalize()
    shown = f"# Task\n{prompt}\n\n# {named} A\n{fenced(first, mark)}\n\n# {named} B\n{fenced(second, mark)}"
    return [{"role": "user", "content": f"{instructions}\n\n{shown}"}]


def _share(said: float | Failure) -> float:
    return said if isinstance(said, float) else math.nan


def _groups(forest: Forest) -> list[tuple[list[int], list[int]]]:
    """Rows of each group that are compared, and the others."""
    groups: dict[str, tuple[list[int], list[int]]] = {}
    for r, (group, compared) in enumerate(zip(forest.group, forest.compared.tolist(), strict=True)):
        groups.setdefault(group, ([], []))[0 if compared else 1].append(r)
    return list(groups.values())


def _distinct(rows: Sequence[int], texts: Sequence[str], twin: list[int]) -> list[int]:
    """The first row of each text; `twin` of the others is set to it."""
    first: dict[str, int] = {}
    for r in rows:
        twin[r] = first.setdefault(texts[r], r)
    return list(first.values())


@dataclass(eq=False)
class Debate(_Asking):
    """{"judge": [R]}: 1 where the judge prefers the first of an attempt's two cases, 0 where the second; each pair of
    cases is asked in both orders, and each order counts half.

    tie  what a tie is worth: of both orders, or of two that contradict each other

    The cases are `info["cases"]` of a rollout, two texts: a team whose graph has `cases` gives them. An attempt without
    them, or with an order that fails, is unscored.
    """

    judge: Judge
    rubric: str = RUBRIC
    workers: int = 8
    tie: float = 0.5
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"
    gives = ("judge",)

    def __post_init__(self) -> None:
        if not 0 <= self.tie <= 1:
            raise ConfigError(f"judge: tie={self.tie!r} is what a tie is worth, from 0 to 1")

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        cases = [info.get("cases") for info in forest.info]
        if not any(cases):
            raise ConfigError(
                "judge: mode 'debate' compares two cases of each attempt, and these rollouts have none: take a team "
                "whose graph has them (rollout=team, rollout.graph=debate)"
            )
        rows = [r for r, pair in enumerate(cases) if pair]
        asked = f"{self.rubric}\n\nTwo sides argue about the task. Which case is better justified?"
        questions = []
        for r in rows:
            first, second = forest.info[r]["cases"]
            prompt = prompt_of(tasks[r], self.judge)
            questions += [asked_to_choose(asked, "case", a, b, prompt) for a, b in ((first, second), (second, first))]
        said = self._answers(questions, read_preference)
        value = [math.nan] * len(texts)
        for r, there, back in zip(rows, said[::2], said[1::2], strict=True):
            if isinstance(there, float) and isinstance(back, float):
                share = (there + 1.0 - back) / 2
                value[r] = self.tie if share == 0.5 else share
            else:
                self._failures += [x for x in (there, back) if isinstance(x, tuple)][:1]
        self._failures += [("nonsense", "an attempt has no cases")] * (len(texts) - len(rows))
        return {"judge": torch.tensor(value, dtype=torch.float64)}


# ---------------------------------------------------------------- first error
@dataclass(eq=False)
class FirstError(_Asking):
    """{"correct_prefix": [R]}: the share of an answer's steps before the first that a judge finds wrong; 1 without one.

    steps   a regular expression for what separates steps; empty ones do not count
    only    "correct": about attempts that the verifier calls right; wrong ones are not judged and have share 0, those
            without a verdict are unscored

    The judge is shown the task, its answer where it has one, and the numbered steps. An answer of the judge's without a
    number, or with one that is no step, leaves the attempt without a share ("nonsense" in the counts). An attempt
    without steps has share 0 and is not judged.
    """

    judge: Judge
    steps: str = r"\n+"
    workers: int = 8
    only: str = "all"
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"
    gives = ("correct_prefix",)

    def __post_init__(self) -> None:
        one_of("judge: only", self.only, ["all", "correct"])

    def steps_of(self, text: str) -> list[str]:
        """Steps of an answer, as numbered for the judge."""
        return [step.strip() for step in re.split(self.steps, text) if step.strip()]

    def question(self, steps: Sequence[str], task: Task) -> list[dict[str, str]]:
        """Prompt to the judge."""
        known = "" if task.answer is None else f"\n\n# Right answer\n{task.answer}"
        mark = marker(*steps)
        instructions = (
            "Go through the numbered steps of this solution and find the first that is wrong. "
            f"{care('The steps are', mark)} End with a last line `First error: K`, K the number of that step, or 0 if "
            "none is wrong, and nothing after it."
        )
        shown = fenced("\n".join(numbered(steps)), mark)
        prompt = prompt_of(task, self.judge)
        return [{"role": "user", "content": f"{instructions}\n\n# Task\n{prompt}{known}\n\n# Steps\n{shown}"}]

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        steps = [self.steps_of(text) for text in texts]
        asked = [r for r in self.rows_asked(forest) if steps[r]]
        value = unasked(forest) if self.reads_success else [0.0] * len(texts)
        for n in sorted({len(steps[r]) for r in asked}):
            rows = [r for r in asked if len(steps[r]) == n]
            said = self._answers([self.question(steps[r], tasks[r]) for r in rows], _share_of(n))
            self._failures += [x for x in said if isinstance(x, tuple)]
            for r, x in zip(rows, said, strict=True):
                value[r] = math.nan if isinstance(x, tuple) else x
        return {"correct_prefix": torch.tensor(value, dtype=torch.float64)}


def _share_of(n: int) -> Callable[[str], float]:
    """Parse a judge's answer on `n` steps: the share of them before the first error; ValueError where it is unclear."""

    def read(answer: str) -> float:
        step = number(ending(answer, "first_error"))
        if step not in range(n + 1):
            raise ValueError(f"no step of {n} in {answer[-80:]!r}")
        return (step - 1) / n if step else 1.0

    return read
