"""Votes over several attempts at a held-out task: the chosen answer, its confidence, and which tasks stay unsure.

The gate is MAgICoRe's (Chen et al. 2024, dinobby/MAgICoRe@1388006): more work only where the chosen answer's score is
low and confidence is low. Confidence is 2 (1 - sigmoid(H)), H the entropy in nats of the answers, weighted by scores.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

UNSURE = 0.5  # confidence of three answers with equal weights


@dataclass(frozen=True)
class Choice:
    """The answer that a task's attempts chose.

    attempt     the first that gave it; None: no attempt has an answer
    confidence  from 1 (all weight on one answer) down to 0; nan without an answer
    score       mean score of the attempts that gave it; nan without scores
    """

    attempt: int | None
    confidence: float
    score: float = math.nan


def confidence(weights: Sequence[float]) -> float:
    """Confidence 2 (1 - sigmoid(H)) of a distribution of answers, H its entropy in nats; nan without weight.

    >>> [round(confidence([1.0] * n), 6) for n in (1, 2, 3, 4)]
    [1.0, 0.666667, 0.5, 0.4]
    """
    total = math.fsum(weights)
    if not total > 0:
        return math.nan
    entropy = -math.fsum(w / total * math.log(w / total) for w in weights if w > 0)
    return 2 * (1 - 1 / (1 + math.exp(-entropy)))


def choice_of(answers: Sequence[str | None], scores: Sequence[float] | None = None) -> Choice:
    """Choose among attempts: the answer given most often, or with the largest sum of scores; of equals the first.

    answers  None: an attempt without one, which has no vote
    scores   of a judge, at least 0; unscored (nan) ones are 0

    >>> choice_of(["7", "8", None, "8"]).attempt, choice_of(["7", "8", "8"], [0.9, 0.2, 0.3]).attempt
    (1, 0)
    """
    weights: dict[str, float] = {}
    for i, answer in enumerate(answers):
        if answer is not None:
            weight = 1.0 if scores is None else 0.0 if math.isnan(scores[i]) else max(scores[i], 0.0)
            weights[answer] = weights.get(answer, 0.0) + weight
    if not weights:
        return Choice(None, math.nan)
    best = max(weights, key=weights.__getitem__)
    members = [i for i, answer in enumerate(answers) if answer == best]
    finite = [scores[i] for i in members if not math.isnan(scores[i])] if scores is not None else []
    return Choice(members[0], confidence([*weights.values()]), statistics.fmean(finite) if finite else math.nan)


def is_unsure(choices: Sequence[Choice]) -> list[bool]:
    """Flag tasks that deserve more work: confidence below `UNSURE` (no answer counts as 0), and, where there are
    scores, a chosen answer whose score is below the mean of all tasks."""
    finite = [c.score for c in choices if not math.isnan(c.score)]
    mean = statistics.fmean(finite) if finite else math.inf
    return [
        not c.confidence >= UNSURE - 1e-12 and (math.isnan(c.score) or c.score < mean - 1e-12 or not finite)
        for c in choices
    ]


def figures(choices: Sequence[Choice], verdicts: Sequence[Sequence[float]]) -> dict[str, float]:
    """Figures of an evaluation from each task's choice and its attempts' verdicts: see `eval.vote`.

    A task without an answer counts as wrong. Accuracy of no task is left out.
    """
    right = [0.0 if c.attempt is None else row[c.attempt] for c, row in zip(choices, verdicts, strict=True)]
    unsure = is_unsure(choices)
    out = {
        "eval_vote_accuracy": statistics.fmean(right),
        "eval_vote_confidence": statistics.fmean(0.0 if math.isnan(c.confidence) else c.confidence for c in choices),
        "eval_vote_unsure": statistics.fmean(unsure),
    }
    for name, flag in (("sure", False), ("unsure", True)):
        if rows := [r for r, u in zip(right, unsure, strict=True) if u is flag]:
            out[f"eval_vote_{name}_accuracy"] = statistics.fmean(rows)
    return out
