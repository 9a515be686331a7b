"""Step scores from a process reward model or an LLM judge."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.algorithms.signals.base import SignalPart, SignalTools
from gxpo.base.errors import ConfigError
from gxpo.base.judges import Failure, FunctionJudge, Judge, Server, ask_all
from gxpo.base.usercode import Unusable, described, object_at, one_line
from gxpo.base.verdicts import care, ending, fenced, indented, marker, number, numbered, scaled, several
from gxpo.forest.forest import OBSERVATION, Forest
from gxpo.forest.grouped import dense
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.parts.protocols import Signals

RUBRIC = "Judge each numbered step: whether it is correct and brings the solution forward."
NONE = ("none", "no", "0")  # for "no step is wrong"


class Attempt(NamedTuple):
    """Input of one judge call: the steps of a trajectory, and the observation before each ("": nothing new)."""

    task: str
    steps: tuple[str, ...]
    observations: tuple[str, ...]


def read_scores(answer: str, n: int, low: float, high: float) -> list[float]:
    """Parse `n` scores from the last line `Scores: ...`, or from a JSON object's "scores", scaled from [low, high] to
    [0, 1]; ValueError otherwise.

    >>> read_scores("The second errs.\\nScores: 10, 4", 2, 0, 10)
    [1.0, 0.4]
    """
    scores = several(ending(answer, "scores"))
    if len(scores) != n:
        raise ValueError(f"{len(scores)} scores for {n} steps in {answer[-80:]!r}")
    return [(scaled(x, low, high) - low) / (high - low) for x in scores]


def read_wrong(answer: str, n: int) -> list[float]:
    """Parse wrong steps from the last line `Wrong steps: ...`, or from a JSON object's "wrong_steps": 0 for these, 1
    for the others; ValueError otherwise.

    >>> read_wrong("Wrong steps: 3", 3), read_wrong("Wrong steps: none", 2)
    ([1.0, 1.0, 0.0], [1.0, 1.0])
    """
    statement = ending(answer, "wrong_steps")
    if isinstance(statement, str) and statement.strip(" .").lower() in NONE:
        return [1.0] * n
    wrong = {number(x) for x in several(statement)}
    # An empty answer was rather cut off than content with every step.
    is_silent = not wrong and isinstance(statement, str)
    if is_silent or not wrong.issubset(range(1, n + 1)):
        raise ValueError(f"no steps of {n} in {answer[-80:]!r}")
    return [float(k not in wrong) for k in range(1, n + 1)]


def rows_of(forest: Forest) -> tuple[Tensor, Tensor]:
    """Row of each action token [P], and step of each row: the segments of every (trajectory, turn), in order; an action
    without segments is one row."""
    segment = forest.to_path(forest.segment, "T") + 1
    width = int(segment.max()) + 1 if len(segment) else 1
    row = dense(forest.path_step * width + segment)
    n = int(row.max()) + 1 if len(row) else 0
    step = torch.zeros(n, dtype=torch.int64)
    step[row] = forest.path_step
    return row, step


@part("step_judge", stage="signal")
@dataclass(frozen=True)
class StepJudge(SignalPart):
    """Signals "segment_score" [P] and "step_score" [S]: a judge's score of each step, float64 in [0, 1], nan unknown.

    The judge, one of
      score   `prm.py:score`, a function of (task, steps, observations) that gives a number, or None, for each step; the
              texts of one trajectory: what was asked, what the policy wrote, what it saw before each of these
      function  `judge.py:ask`, a function of messages that returns a text, or
      server  address of an OpenAI-compatible server, and `model` as it calls it: these answer in words

    reply_format  what a judge is asked for: "scores" from `low` to `high` for every step, or the "wrong" steps: 0 for
               these, 1 for the others
    critiques  answers to each question; a step has the mean of those that could be read, which of "wrong" is the share
               of critiques that find nothing wrong with it. Without a temperature they are all alike
    workers    questions asked at a time (`score` is called for one trajectory after the other)
    key_from, temperature, max_tokens, timeout, retries  of the server (see `gxpo.base.judges.Server`)

    A step is a segment where the method names a segmenter, else a whole action; "step_score" is the mean of an action's
    segments that have a score. Scored trajectories only; equal ones are asked about once a step of the run. What fails
    leaves nan: the first failure is a warning, all are counted. Under several processes each asks for itself.

    Figures: judge_asked (different trajectories), judge_failures (of them, or of their critiques), steps_unscored.
    """

    score: str | None = None
    function: str | None = None
    server: str | None = None
    model: str = ""
    key_from: str | None = None
    reply_format: Literal["scores", "wrong"] = "scores"
    low: float = 0.0
    high: float = 10.0
    critiques: Annotated[int, Ge(1)] = 1
    rubric: str = RUBRIC
    workers: int = 8
    temperature: float = 0.0
    max_tokens: int = 512
    timeout: float = 60.0
    retries: int = 3
    memory: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    provides = ("step_score", "segment_score")
    one_of = ("score", "function", "server")  # exactly one has to be set
    axes = {"step_score": "S"}  # noqa: RUF012  never changed

    def __post_init__(self) -> None:
        if not self.low < self.high or math.isinf(self.high - self.low):
            raise ConfigError(f"signal step_judge: low ({self.low:g}) is below high ({self.high:g}), both finite")

    def bind(self, tools: SignalTools) -> None:
        choices = [x for x in (getattr(self, name) for name in self.one_of) if x is not None]
        if len(choices) != 1:
            raise ConfigError(
                "signal step_judge: set what scores the steps, one of score=prm.py:score, function=judge.py:ask and "
                "server=http://localhost:8000/v1 (as --set signal.step_judge.score=prm.py:score)"
            )
        if self.server is not None:
            limits: dict[str, Any] = {"timeout": self.timeout, "retries": self.retries}
            self.memory["judge"] = Server(self.server, self.model, self.key_from, self.temperature,
                                          self.max_tokens, **limits)  # fmt: skip
            return
        try:
            function = object_at(choices[0])
        except Unusable as error:
            raise ConfigError(f"signal step_judge: {choices[0]}: {error}") from None
        self.memory["function" if self.score is not None else "judge"] = (
            function if self.score is not None else FunctionJudge(function)
        )

    def question(self, attempt: Attempt) -> list[dict[str, str]]:
        """Prompt to the judge about a trajectory."""
        # A mark that is in none of the texts fences them, so that a rollout can't write instructions to its judge.
        mark = marker(*attempt.steps, *attempt.observations)
        instruction = (
            f"Score every step from {self.low:g} (worst) to {self.high:g} (best). {care('The steps are', mark)} End "
            "with a last line `Scores: ...` that has a number for every step, in their order, and nothing after it."
            if self.reply_format == "scores"
            else f"{care('The steps are', mark)} End with a last line `Wrong steps: ...` that has the numbers of the "
            "wrong steps, or none, and nothing after it."
        )
        lines = [
            f"(observed: {indented(observation)})\n{step}" if observation else step
            for step, observation in zip(numbered(attempt.steps), attempt.observations, strict=True)
        ]
        content = f"# Task\n{attempt.task}\n\n# Steps\n{fenced(chr(10).join(lines), mark)}"
        return [{"role": "user", "content": f"{self.rubric} {instruction}\n\n{content}"}]

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        row, row_step = rows_of(forest)
        attempts, rows = _attempts(forest, row, row_step, tools.decode)
        # Equal attempts are one question, whatever the group's size: answers may cost money.
        distinct_attempts = list(dict.fromkeys(attempts))
        scores_by_attempt, failures = self._score_attempts(distinct_attempts)
        value = torch.full((len(row_step),), torch.nan, dtype=torch.float64)
        for attempt, attempt_rows in zip(attempts, rows, strict=True):
            value[attempt_rows] = torch.tensor(scores_by_attempt[attempt], dtype=torch.float64)
        is_judged = forest.scored[forest.step_trajectory[row_step]]
        self.memory["figures"] = {
            "judge_asked": float(len(distinct_attempts)),
            "judge_failures": float(len(failures)),
            "steps_unscored": float((is_judged & value.isnan()).sum()),
        }
        # One warning a run; the metrics count every failure.
        if failures and "warned" not in self.memory:
            self.memory["warned"] = True
            kind, message = failures[0]
            warnings.warn(
                f"signal step_judge leaves steps without a score ({kind}: {message}); metrics count them as "
                "judge_failures and steps_unscored",
                stacklevel=2,
            )
        # Segments without a score are left out of their action's mean; an action without any is 0 / 0, nan.
        has_score = value.isfinite()
        total, n_scored = (torch.zeros(forest.n_steps, dtype=torch.float64) for _ in range(2))
        total.index_add_(0, row_step[has_score], value[has_score])
        n_scored.index_add_(0, row_step[has_score], torch.ones_like(value[has_score]))
        return {"step_score": total / n_scored, "segment_score": value[row]}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        return dict(self.memory["figures"])

    def _score_attempts(self, attempts: Sequence[Attempt]) -> tuple[dict[Attempt, list[float]], list[Failure]]:
        """Scores of each attempt's steps, nan unknown, and the failures."""
        if "function" in self.memory:
            results: list[list[float] | Failure] = [self._call_function(attempt) for attempt in attempts]
        else:
            judge: Judge = self.memory["judge"]
            questions = [self.question(attempt) for attempt in attempts for _ in range(self.critiques)]
            owner = [attempt for attempt in attempts for _ in range(self.critiques)]
            answers = ask_all(judge, questions, self.workers)
            results = [self._read(text, attempt) for text, attempt in zip(answers, owner, strict=True)]
        # One result from a function, `critiques` of them from a judge.
        per_attempt = len(results) // max(len(attempts), 1)
        scores_by_attempt = {
            attempt: _mean(
                [x for x in results[i * per_attempt : (i + 1) * per_attempt] if isinstance(x, list)], len(attempt.steps)
            )
            for i, attempt in enumerate(attempts)
        }
        return scores_by_attempt, [x for x in results if isinstance(x, tuple)]

    def _read(self, answer: str | Failure, attempt: Attempt) -> list[float] | Failure:
        if isinstance(answer, tuple):
            return answer
        n = len(attempt.steps)
        try:
            return (
                read_wrong(answer, n) if self.reply_format == "wrong" else read_scores(answer, n, self.low, self.high)
            )
        except ValueError as error:
            return ("nonsense", one_line(f"the judge's answer can't be read: {error}"))

    def _call_function(self, attempt: Attempt) -> list[float] | Failure:
        """Call the user's function for the scores of an attempt; return a failure in place of an exception."""
        try:
            returned = self.memory["function"](attempt.task, list(attempt.steps), list(attempt.observations))
            scores = [math.nan if x is None else float(x) for x in returned]
        except (Exception, SystemExit) as error:
            return ("raised", described(error))
        if len(scores) != len(attempt.steps):
            return ("nonsense", f"{self.score} gave {len(scores)} scores for {len(attempt.steps)} steps")
        if bad := [x for x in scores if not (0 <= x <= 1 or math.isnan(x))]:
            return ("nonsense", f"{self.score} gave {bad[0]:g}: scores are from 0 to 1")
        return scores


def _mean(several: Sequence[list[float]], n: int) -> list[float]:
    """Mean of several answers, step by step; nan without any."""
    return [sum(column) / len(column) for column in zip(*several, strict=True)] if several else [math.nan] * n


def _attempts(
    forest: Forest, row: Tensor, row_step: Tensor, decode: Callable[[Sequence[int]], str]
) -> tuple[list[Attempt], list[slice]]:
    """Texts of the scored trajectories as judge inputs, and the slice of rows of each."""
    tokens: list[list[int]] = [[] for _ in range(len(row_step))]
    for k, token in zip(row.tolist(), forest.token[forest.path_token].tolist(), strict=True):
        tokens[k].append(token)
    owner = forest.step_trajectory[row_step]
    # Rows are by trajectory, then step, so that each trajectory's are a slice.
    begins = torch.searchsorted(owner, torch.arange(forest.n_trajectories + 1)).tolist()
    steps, previous = row_step.tolist(), forest.step_previous.tolist()
    attempts, row_slices = [], []
    for r, is_scored in enumerate(forest.scored.tolist()):
        rows = range(begins[r], begins[r + 1])
        if not is_scored or not rows:
            continue
        text = forest.prompt_text[r]
        task = decode(forest.context(int(forest.prompt_node[r]))) if text is None else text
        # The observation belongs to the first segment of an action; the first action's is the task itself.
        begins_action = [k == rows.start or steps[k] != steps[k - 1] for k in rows]
        observations = [
            _observation_text(forest, steps[k], decode) if is_first and previous[steps[k]] >= 0 else ""
            for k, is_first in zip(rows, begins_action, strict=True)
        ]
        step_texts = tuple(_action_text(forest, steps[k], tokens[k], decode) for k in rows)
        attempts.append(Attempt(task, step_texts, tuple(observations)))
        row_slices.append(slice(rows.start, rows.stop))
    return attempts, row_slices


def _action_text(forest: Forest, step: int, tokens: list[int], decode: Callable[[Sequence[int]], str]) -> str:
    text = forest.action_text[step]
    return text if text is not None and tokens == [-1] else decode(tokens)


def _observation_text(forest: Forest, step: int, decode: Callable[[Sequence[int]], str]) -> str:
    """Text between the action and the one before it in its context."""
    text = forest.observation_text[step]
    if text is not None:
        return text
    tokens: list[int] = []
    node = int(forest.parent[forest.step_nodes(step)[0]])
    while node >= 0 and int(forest.kind[node]) == OBSERVATION:
        tokens = forest.token[int(forest.first_token[node]) : int(forest.first_token[node + 1])].tolist() + tokens
        node = int(forest.parent[node])
    return decode(tokens)
