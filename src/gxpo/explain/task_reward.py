"""What a run's reward pays for the reference answers of its tasks, for an empty completion and for another answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gxpo.environments.rewards import RewardSet
from gxpo.explain.check_reward import Judge
from gxpo.explain.trials import Trial, forms, references
from gxpo.parts.protocols import Task
from gxpo.parts.settings import RunSettings

MARGIN = 1e-9  # of a score, below which it counts as full
ASKS = ("judge",)  # rewards that send completions to a server, which may cost money


def paid(s: RunSettings, source: Any, tasks: Sequence[Task]) -> dict[str, Any] | None:
    """Score the tasks' reference answers in several forms, empty completions and other tasks' answers.

    `full` is the best score of a reference in the form that earns most in the mean; `unpaid` lists tasks whose
    reference earns less in every form. None where no task has an answer; `{"skipped": why}` for rewards that ask a
    server.
    """
    answered = [t for t in tasks if t.answer is not None and str(t.answer).strip()]
    named = s.rewards if isinstance(s.rewards, (str, dict)) else {}
    if asked := [name for name in ASKS if name in ({named: 1} if isinstance(named, str) else named)]:
        return {"skipped": f"reward {asked[0]} asks a server: gxpo check-reward tries it"}
    if not answered:
        return None
    with RewardSet.make(s.rewards, source=source, timeout=s.scoring.timeout, options=s.scoring.options) as rewards:
        judge = Judge(rewards)
        ways = forms(source)
        trials = references(answered, ways)
        scores = judge.with_verdicts(trials)
        table = {name: _means([x for t, x in zip(trials, scores, strict=True) if t.kind == f"reference: {name}"])
                 for name in ways}  # fmt: skip
        form = max(ways, key=lambda name: -math.inf if (mean := table[name]) is None else mean)
        full = max((x for t, (x, _) in zip(trials, scores, strict=True) if t.kind == f"reference: {form}"), default=0.0)
        empty = judge.with_verdicts([Trial("empty", "", t) for t in answered])
        wrong = judge.with_verdicts(_others(answered, ways[form]))
        best: dict[str, float] = {}
        for trial, (score, verdict) in zip(trials, scores, strict=True):
            value = math.inf if verdict == 1 else -math.inf if math.isnan(score) else score
            best[trial.task.id] = max(best.get(trial.task.id, -math.inf), value)
        return {
            "name": _name(s, source),
            "of_the_task": getattr(source, "scorer", None) is not None and s.rewards is None,
            "tasks": len(answered),
            "form": form,
            "example": ways[form](answered[0]),
            "forms": table,
            "full": None if math.isnan(full) else full,
            "empty": _means(empty),
            "wrong": _means(wrong),
            "unpaid": [
                {"id": t.id, "answer": str(t.answer), "pays": None if best[t.id] == -math.inf else best[t.id]}
                for t in answered
                if best[t.id] < full - MARGIN or best[t.id] == -math.inf
            ],
            "failures": {_said(k): rewards.messages[k] for k, count in rewards.counts.items() if count},
        }


def _said(kind: str) -> str:
    return {"raised": "raises", "nonsense": "returns no finite number", "timeout": "takes too long",
            "died": "ends its process", "limit": "finds an expression too large"}[kind]  # fmt: skip


def _name(s: RunSettings, source: Any) -> str:
    if s.rewards is None:
        return getattr(source, "reward_default", None) or "correct"
    return s.rewards if isinstance(s.rewards, str) else " + ".join(f"{w:g} {name}" for name, w in s.rewards.items())


def _others(tasks: Sequence[Task], form: Any) -> list[Trial]:
    """For each task the answer of the next one that has another."""
    out = []
    for place, task in enumerate(tasks):
        following = [*tasks[place + 1 :], *tasks[:place]]
        other = next((t for t in following if str(t.answer) != str(task.answer)), None)
        if other is not None:
            out.append(Trial("wrong", form(other), task))
    return out


def _means(found: Sequence[tuple[float, float]]) -> float | None:
    known = [score for score, _ in found if not math.isnan(score)]
    return math.fsum(known) / len(known) if known else None
