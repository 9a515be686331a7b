"""LLM-judge rewards: rubric scores, tournaments within the group, debates, first errors."""

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
from gxpo.environments.rewards.base import Failure
from gxpo.forest.forest import Forest

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task


VERDICT = re.compile(r"(?:answer\s+)?(A|B|TIE)", re.IGNORECASE)
RUBRIC = "How good is the answer? Judge whether it is correct and complete."


def prompt_of(task: Task, judge: Judge | None = None) -> str:
    """Prompt of a task as text, pictures by name (<image 0066bcce>), or marked (`media.mark`) for a judge that sees."""
    prompt = task.prompt
    if isinstance(prompt, str):
        return prompt
    content_text = media.marked if getattr(judge, "vision", False) else media.text_of
    return "\n".join(content_text(m.get("content")) if isinstance(m, Mapping) else str(m) for m in prompt)


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
    verdict = ending(answer, "verdict", bare=True)
    match = VERDICT.fullmatch(verdict.strip(" .[]()\"'")) if isinstance(verdict, str) else None
    if match is None:
        raise ValueError(f"neither A, B nor TIE as the verdict at the end of {answer[-80:]!r}")
    return {"A": 1.0, "B": 0.0, "TIE": 0.5}[match[1].upper()]


class JudgedReward:
    """Base of judged rewards: asks questions concurrently and keeps failures for the trajectories left unscored."""

    judge: Judge
    workers: int
    _failures: list[Failure]
    answers: str = "all"

    @property
    def reads_success(self) -> bool:
        """True if it needs the verdicts, as it judges right attempts alone."""
        return self.answers == "correct"

    def rows_to_judge(self, forest: Forest) -> list[int]:
        """Rows of the attempts that are judged."""
        if not self.reads_success:
            return list(range(forest.n_trajectories))
        return (forest.success >= 1).nonzero().flatten().tolist()

    def failures(self) -> list[Failure]:
        """Return and clear the failures since the last call, one per trajectory."""
        failures_so_far = list(self._failures)
        self._failures.clear()
        return failures_so_far

    def _parsed_replies(
        self, questions: Sequence[Sequence[Mapping[str, str]]], read: Callable[[str], float]
    ) -> list[float | Failure]:
        """Parsed reply to each question, or its failure; equal questions are asked once."""
        keys = [tuple((m["role"], m["content"]) for m in question) for question in questions]
        first = dict(zip(keys, questions, strict=True))  # in the order in which they are asked first
        reply_by_question = dict(zip(first, ask_all(self.judge, list(first.values()), self.workers), strict=True))
        return [_parsed_reply(reply_by_question[key], read) for key in keys]


def _parsed_reply(reply: str | Failure, read: Callable[[str], float]) -> float | Failure:
    if isinstance(reply, tuple):
        return reply
    try:
        return read(reply)
    except ValueError as error:
        return ("nonsense", f"the judge's answer can't be read: {error}")


@dataclass(eq=False)
class Rubric(JudgedReward):
    """{"judge": [R]}: (score - low) / (high - low) of a score from `low` to `high` by the judge, for each attempt.

    answers  "correct": about attempts that the verifier calls right; wrong ones are not judged and have 0, those
          without a verdict are unscored

    An answer without a score, or with one out of range, leaves the attempt unscored ("nonsense" in the counts), and so
    does a judge that can't be asked.
    """

    judge: Judge
    rubric: str = RUBRIC
    low: float = 0.0
    high: float = 10.0
    workers: int = 8
    answers: str = "all"
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"
    gives = ("judge",)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"judge: low={self.low!r} must be below high={self.high!r}")
        one_of("judge: answers", self.answers, ["all", "correct"])

    def question(self, text: str, task: Task) -> list[dict[str, str]]:
        """Messages that ask the judge for a score."""
        mark = marker(text)
        instructions = (
            f"{self.rubric}\n\nScore the answer from {self.low:g} (worst) to {self.high:g} (best). "
            f"{care('The answer is', mark)} End with a last line `Score: N` and nothing after it."
        )
        task_and_answer = f"# Task\n{prompt_of(task, self.judge)}\n\n# Answer\n{fenced(text, mark)}"
        return [{"role": "user", "content": f"{instructions}\n\n{task_and_answer}"}]

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        rows = self.rows_to_judge(forest)
        questions = [self.question(texts[r], tasks[r]) for r in rows]
        scores = self._parsed_replies(questions, lambda answer: read_score(answer, self.low, self.high))
        self._failures += [x for x in scores if isinstance(x, tuple)]
        value = unjudged_values(forest) if self.reads_success else [math.nan] * len(texts)
        for r, x in zip(rows, scores, strict=True):
            value[r] = math.nan if isinstance(x, tuple) else (x - self.low) / (self.high - self.low)
        return {"judge": torch.tensor(value, dtype=torch.float64)}


def unjudged_values(forest: Forest) -> list[float]:
    """Values of attempts that are not judged: 0 for wrong ones, nan without a verdict."""
    return torch.where(forest.success.isnan(), torch.nan, 0.0).tolist()


@dataclass(eq=False)
class Pairwise(JudgedReward):
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
        """Messages that ask the judge for the better of two answers."""
        prompt = prompt_of(task, self.judge)
        return choice_question(f"{self.rubric}\n\nWhich answer is better?", "answer", first, second, prompt)

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        # Attempts of one text are one contestant where a place is paid: `head_of` maps a row to the row that plays.
        merges_texts = self.compare not in ("all", "first") and self.contestants == "texts"
        groups, head_of = _groups(forest), list(range(len(texts)))  # row that stands for a row
        if merges_texts:
            groups = [(_distinct(rows, texts, head_of), uncompared_rows) for rows, uncompared_rows in groups]
        shares_by_match: dict[tuple[int, int], float | Failure] = {}  # of rows
        meets_first_only = self.compare in ("first", "anchor")
        # Attempts that are not compared play each contestant, outside of the tournament, in its first round.
        due_matches = [
            (i, j)
            for rows, uncompared_rows in groups
            for i in uncompared_rows
            for j in (rows[:1] if meets_first_only else rows)
        ]
        rounds: list[list[dict[tuple[int, int], float]]] = [[] for _ in groups]
        # A round of all groups is one batch of questions; a group whose tournament is over has no further matches.
        while True:
            pairings_by_group = [
                tournament.pairings(self.compare, len(g), r) for (g, _), r in zip(groups, rounds, strict=True)
            ]
            due_matches += [
                (rows[i], rows[j]) for (rows, _), pairs in zip(groups, pairings_by_group, strict=True) for i, j in pairs
            ]
            self._play_matches(due_matches, shares_by_match, texts, tasks)
            if not any(pairings_by_group):
                break
            due_matches = []
            for (rows, _), results, pairs in zip(groups, rounds, pairings_by_group, strict=True):
                if pairs:
                    results.append({(i, j): _share(shares_by_match[rows[i], rows[j]]) for i, j in pairs})
        # Contestants are paid by the tournament, the others by the mean share of their matches.
        value = [math.nan] * len(texts)
        for (rows, uncompared_rows), results in zip(groups, rounds, strict=True):
            for r, payment in zip(rows, tournament.rewards(self.compare, len(rows), results), strict=True):
                value[r] = payment
            for r in uncompared_rows:
                shares = [x for (i, _), x in shares_by_match.items() if i == r and isinstance(x, float)]
                value[r] = sum(shares) / len(shares) if shares else math.nan
        repeated_heads = {head for r, head in enumerate(head_of) if head != r}
        for rows, _ in groups:
            if merges_texts and len(rows) == 1 and rows[0] in repeated_heads:
                value[rows[0]] = 0.5  # all attempts of the group are one text
        value = [value[head] for head in head_of]
        # An unscored attempt is counted with the first failure of its matches.
        for r in (r for r, x in enumerate(value) if math.isnan(x)):
            failures = [x for pair, x in shares_by_match.items() if head_of[r] in pair and isinstance(x, tuple)]
            self._failures.append(
                failures[0] if failures else ("nonsense", "an attempt has no other to be compared with")
            )
        return {"judge": torch.tensor(value, dtype=torch.float64)}

    def _play_matches(
        self,
        pairs: Sequence[tuple[int, int]],
        shares_by_match: dict[tuple[int, int], float | Failure],
        texts: Sequence[str],
        tasks: Sequence[Task],
    ) -> None:
        """Ask for the matches that have not been played; `shares_by_match` gets each row's share, or the failure."""
        # Each match is asked in both orders: a judge that prefers the first place gives both sides 1/2.
        new_matches = [(i, j) for i, j in dict.fromkeys(pairs) if (i, j) not in shares_by_match]
        orders = [*new_matches, *((j, i) for i, j in new_matches)]
        preferences = self._parsed_replies(
            [self.question(texts[i], texts[j], tasks[i]) for i, j in orders], read_preference
        )
        for (i, j), preference, reverse_preference in zip(
            new_matches, preferences, preferences[len(new_matches) :], strict=False
        ):
            reverse_share = preference if isinstance(preference, tuple) else reverse_preference
            if isinstance(preference, float) and isinstance(reverse_preference, float):
                shares_by_match[i, j] = (preference + 1.0 - reverse_preference) / 2
                shares_by_match[j, i] = 1.0 - (preference + 1.0 - reverse_preference) / 2
            elif isinstance(reverse_share, tuple):
                shares_by_match[i, j] = shares_by_match[j, i] = reverse_share


def choice_question(question: str, noun: str, first: str, second: str, prompt: str) -> list[dict[str, str]]:
    """Messages that ask which of two texts, each a `noun`, is better for a task's prompt."""
    mark = marker(first, second)
    instructions = (
        f"{question} {care(f'The {noun}s are', mark)} "
        "End with a last line `Verdict: A`, `Verdict: B` or `Verdict: TIE` and nothing after it."
    )
    capitalised = noun.capitalize()
    candidates = (
        f"# Task\n{prompt}\n\n# {capitalised} A\n{fenced(first, mark)}\n\n# {capitalised} B\n{fenced(second, mark)}"
    )
    return [{"role": "user", "content": f"{instructions}\n\n{candidates}"}]


def _share(result: float | Failure) -> float:
    """Share of a match, nan for one that failed."""
    return result if isinstance(result, float) else math.nan


def _groups(forest: Forest) -> list[tuple[list[int], list[int]]]:
    """Pairs of each group's compared rows and its other rows."""
    groups: dict[str, tuple[list[int], list[int]]] = {}
    for r, (group, compared) in enumerate(zip(forest.group, forest.compared.tolist(), strict=True)):
        groups.setdefault(group, ([], []))[0 if compared else 1].append(r)
    return list(groups.values())


def _distinct(rows: Sequence[int], texts: Sequence[str], head_of: list[int]) -> list[int]:
    """First row of each text; `head_of` maps the others to it."""
    first: dict[str, int] = {}
    for r in rows:
        head_of[r] = first.setdefault(texts[r], r)
    return list(first.values())


@dataclass(eq=False)
class Debate(JudgedReward):
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
                "judge: mode 'debate' compares two cases of each attempt, and these rollouts have none: choose a team "
                "whose graph has them (rollout=team, rollout.graph=debate)"
            )
        # Attempts whose graph wrote no cases are unscored, and counted below.
        rows = [r for r, pair in enumerate(cases) if pair]
        request = f"{self.rubric}\n\nTwo sides argue about the task. Which case is better justified?"
        questions = []
        for r in rows:
            first, second = forest.info[r]["cases"]
            prompt = prompt_of(tasks[r], self.judge)
            # In both orders, so that a judge that prefers the first place decides nothing.
            questions += [choice_question(request, "case", a, b, prompt) for a, b in ((first, second), (second, first))]
        preferences = self._parsed_replies(questions, read_preference)
        value = [math.nan] * len(texts)
        for r, preference, reverse_preference in zip(rows, preferences[::2], preferences[1::2], strict=True):
            if isinstance(preference, float) and isinstance(reverse_preference, float):
                share = (preference + 1.0 - reverse_preference) / 2
                # A draw is what two opposite preferences give, and is paid as configured.
                value[r] = self.tie if share == 0.5 else share
            else:
                self._failures += [x for x in (preference, reverse_preference) if isinstance(x, tuple)][:1]
        self._failures += [("nonsense", "an attempt has no cases")] * (len(texts) - len(rows))
        return {"judge": torch.tensor(value, dtype=torch.float64)}


# ---------------------------------------------------------------- first error
@dataclass(eq=False)
class FirstError(JudgedReward):
    """{"correct_prefix": [R]}: share of an answer's steps before the first that a judge finds wrong; 1 without one.

    steps   a regular expression for what separates steps; empty ones do not count
    answers  "correct": about attempts that the verifier calls right; wrong ones are not judged and have share 0, those
            without a verdict are unscored

    The judge is shown the task, its answer where it has one, and the numbered steps. An answer of the judge's without a
    number, or with one that is no step, leaves the attempt without a share ("nonsense" in the counts). An attempt
    without steps has share 0 and is not judged.
    """

    judge: Judge
    steps: str = r"\n+"
    workers: int = 8
    answers: str = "all"
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"
    gives = ("correct_prefix",)

    def __post_init__(self) -> None:
        one_of("judge: answers", self.answers, ["all", "correct"])

    def steps_of(self, text: str) -> list[str]:
        """Split an answer into its steps, as numbered for the judge."""
        return [step.strip() for step in re.split(self.steps, text) if step.strip()]

    def question(self, steps: Sequence[str], task: Task) -> list[dict[str, str]]:
        """Messages that ask the judge for the first wrong step."""
        right_answer = "" if task.answer is None else f"\n\n# Right answer\n{task.answer}"
        # A mark that is in none of the steps: they can't close the fence and give instructions.
        mark = marker(*steps)
        instructions = (
            "Go through the numbered steps of this solution and find the first that is wrong. "
            f"{care('The steps are', mark)} End with a last line `First error: K`, K the number of that step, or 0 if "
            "none is wrong, and nothing after it."
        )
        numbered_steps = fenced("\n".join(numbered(steps)), mark)
        prompt = prompt_of(task, self.judge)
        return [
            {
                "role": "user",
                "content": f"{instructions}\n\n# Task\n{prompt}{right_answer}\n\n# Steps\n{numbered_steps}",
            }
        ]

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        steps = [self.steps_of(text) for text in texts]
        rows_with_steps = [r for r in self.rows_to_judge(forest) if steps[r]]
        value = unjudged_values(forest) if self.reads_success else [0.0] * len(texts)
        # Replies are read against the number of steps, so answers with equally many go together.
        for n in sorted({len(steps[r]) for r in rows_with_steps}):
            rows = [r for r in rows_with_steps if len(steps[r]) == n]
            shares = self._parsed_replies([self.question(steps[r], tasks[r]) for r in rows], _share_of(n))
            self._failures += [x for x in shares if isinstance(x, tuple)]
            for r, x in zip(rows, shares, strict=True):
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
