"""Answers that a row of data brings with its prompt: preference pairs, completions with scores, labelled completions.

`chosen` and `rejected`: outcomes 1 and 0, and so are the verdicts. `completions`, with `scores`: a list of each;
`completion`, with `label` (true or false, the verdict) or `score`. An answer is a text, or the messages that follow the
prompt's (those that repeat the prompt are passed over): each of the assistant's is a turn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import ModelError, TaskError
from gxpo.models.chat.messages import THOUGHT_KEYS, normal_messages
from gxpo.parts.protocols import Message, Task

ANSWERS = ("chosen", "rejected", "completion", "completions", "label", "score", "scores")  # columns
WANTED = "'chosen' and 'rejected', 'completions' (with 'scores'), or 'completion' (with 'label' or 'score')"


@dataclass(frozen=True)
class Said:
    """One answer: `name` within its row, the texts of its turns, and the messages between them (one fewer)."""

    name: str
    texts: tuple[str, ...]
    between: tuple[tuple[Message, ...], ...] = ()
    outcome: float | None = None  # None: the run's reward scores it
    success: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


def answers_of(task: Task) -> list[Said]:
    """The answers that a task's row brings, in order. TaskError where there are none, or one can't be read."""
    row = task.info
    if "chosen" in row or "rejected" in row:
        if lacking := [name for name in ("chosen", "rejected") if row.get(name) is None]:
            raise TaskError(f"task {task.id!r}: a pair has 'chosen' and 'rejected', and {lacking[0]!r} is missing")
        return [
            _said(task, name, row[name], outcome=float(good), success=good)
            for name, good in (("chosen", True), ("rejected", False))
        ]
    if "completions" in row:
        given, scores = row["completions"], row.get("scores")
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            raise TaskError(f"task {task.id!r}: 'completions' must be a list of answers, not {given!r:.40}")
        scores = [None] * len(given) if scores is None else scores
        if not isinstance(scores, Sequence) or len(scores) != len(given):
            raise TaskError(
                f"task {task.id!r}: 'scores' must be a list of {len(given)} numbers, as there are completions"
            )
        return [
            _said(task, str(i), x, outcome=_number(task, y)) for i, (x, y) in enumerate(zip(given, scores, strict=True))
        ]
    if "completion" in row:
        label, score = row.get("label"), row.get("score")
        if label is not None and not isinstance(label, bool):
            raise TaskError(f"task {task.id!r}: 'label' must be true or false, not {label!r}")
        outcome = float(label) if isinstance(label, bool) and score is None else _number(task, score)
        return [_said(task, "0", row["completion"], outcome=outcome, success=label)]
    raise TaskError(
        f"task {task.id!r} brings no answers, and rollout logged samples none: give it {WANTED}, or set "
        "rollout.file to records of rollouts"
    )


def _number(task: Task, score: Any) -> float | None:
    if score is None:
        return None
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
        raise TaskError(f"task {task.id!r}: a score must be a number or null, not {score!r}")
    return float(score)


def _said(task: Task, name: str, answer: Any, **verdict: Any) -> Said:
    """The turns of an answer."""
    where = f"task {task.id!r}: answer {name!r}"
    if isinstance(answer, str):
        messages: list[Message] = [{"role": "assistant", "content": answer}]
    elif isinstance(answer, Sequence) and all(isinstance(m, Mapping) and "role" in m for m in answer):
        try:
            messages = _after(task.prompt, normal_messages(answer))
        except ModelError as error:
            raise TaskError(f"{where}: {error}") from None
    else:
        raise TaskError(f"{where} must be a text or messages with 'role' and 'content', not {answer!r:.40}")
    places = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not places or places[0] != 0 or places[-1] != len(messages) - 1:
        raise TaskError(f"{where} must begin and end with a message of the assistant's, after those of the prompt")
    if unwritten := [key for i in places for key in ("tool_calls", *THOUGHT_KEYS) if messages[i].get(key)]:
        raise TaskError(
            f"{where} has a message of the assistant's with {unwritten[0]!r}: write it into 'content', in the model's "
            "own form"
        )
    texts = tuple(messages[i]["content"] for i in places)
    if any(not isinstance(text, str) or not text for text in texts):
        raise TaskError(f"{where} has a message of the assistant's without a text")
    between = tuple(tuple(messages[i + 1 : j]) for i, j in itertools.pairwise(places))
    if not all(between):
        raise TaskError(f"{where} has two messages of the assistant's in a row: join them")
    own = {k: v for k, v in task.info.items() if k not in ANSWERS and isinstance(v, (str, int, float, bool))}
    return Said(name, texts, between, info=own, **verdict)


def _after(prompt: Any, answer: Sequence[Message]) -> list[Message]:
    """The messages of an answer without those of its prompt, where it repeats them."""
    opening = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    bare = [(m["role"], m["content"]) for m in answer]
    asked = [(m["role"], m["content"]) for m in opening if isinstance(m, Mapping)]
    return list(answer[len(asked) :] if asked and bare[: len(asked)] == asked else answer)
