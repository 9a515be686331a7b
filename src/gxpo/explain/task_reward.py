"""Reward of a run for reference answers, empty completions and wrong answers of its tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gxpo.environments.rewards import RewardSet
from gxpo.explain.check_reward import Judge
from gxpo.explain.trials import Trial, forms, references
from gxpo.parts.protocols import Task
from gxpo.parts.settings import RunSettings

MARGIN = 1e-9  # scores closer than this are equal
SERVER_REWARDS = ("judge",)  # rewards that send completions to a server, which may cost money


def reward_figures(settings: RunSettings, source: Any, tasks: Sequence[Task]) -> dict[str, Any] | None:
    """Score the tasks' reference answers in several forms, empty completions and other tasks' answers.

    `full` is the best score of a reference in the form that earns most in the mean; `unpaid` lists tasks whose
    reference earns less in every form. Returns None where no task has an answer, `{"skipped": reason}` for rewards that
    ask a server.
    """
    answered_tasks = [t for t in tasks if t.answer is not None and str(t.answer).strip()]
    reward_names = (
        [settings.rewards]
        if isinstance(settings.rewards, str)
        else settings.rewards
        if isinstance(settings.rewards, dict)
        else ()
    )
    if server_rewards := [name for name in SERVER_REWARDS if name in reward_names]:
        return {"skipped": f"reward {server_rewards[0]} asks a server: gxpo check-reward tries it"}
    if not answered_tasks:
        return None
    with RewardSet.make(
        settings.rewards, source=source, timeout=settings.scoring.timeout, options=settings.scoring.options
    ) as rewards:
        judge = Judge(rewards)
        # Rewards differ in the form that they read; a reference in the wrong one earning nothing is no defect.
        forms_by_name = forms(source)
        trials = references(answered_tasks, forms_by_name)
        scores = judge.with_verdicts(trials)
        pairs = list(zip(trials, scores, strict=True))
        mean_by_form = {
            name: _mean_score([x for t, x in pairs if t.kind == f"reference: {name}"]) for name in forms_by_name
        }
        form = max(forms_by_name, key=lambda name: -math.inf if (mean := mean_by_form[name]) is None else mean)
        full = max((x for t, (x, _) in zip(trials, scores, strict=True) if t.kind == f"reference: {form}"), default=0.0)
        empty = judge.with_verdicts([Trial("empty", "", t) for t in answered_tasks])
        wrong = judge.with_verdicts(_wrong_answers(answered_tasks, forms_by_name[form]))
        best: dict[str, float] = {}
        for trial, (score, verdict) in zip(trials, scores, strict=True):
            # the verifier's verdict decides, where there is one: shaping may have changed the score
            value = math.inf if verdict == 1 else -math.inf if math.isnan(score) else score
            best[trial.task.id] = max(best.get(trial.task.id, -math.inf), value)
        return {
            "name": _reward_name(settings, source),
            "of_the_task": getattr(source, "scorer", None) is not None and settings.rewards is None,
            "tasks": len(answered_tasks),
            "form": form,
            "example": forms_by_name[form](answered_tasks[0]),
            "forms": mean_by_form,
            "full": None if math.isnan(full) else full,
            "empty": _mean_score(empty),
            "wrong": _mean_score(wrong),
            "unpaid": [
                {"id": t.id, "answer": str(t.answer), "pays": None if best[t.id] == -math.inf else best[t.id]}
                for t in answered_tasks
                if best[t.id] < full - MARGIN or best[t.id] == -math.inf
            ],
            "failures": {_failure_verb(k): rewards.messages[k] for k, count in rewards.counts.items() if count},
        }


def _failure_verb(kind: str) -> str:
    return {
        "raised": "raises",
        "nonsense": "returns no finite number",
        "timeout": "takes too long",
        "died": "ends its process",
        "limit": "finds an expression too large",
    }[kind]


def _reward_name(s: RunSettings, source: Any) -> str:
    if s.rewards is None:
        return getattr(source, "reward_default", None) or "correct"
    return s.rewards if isinstance(s.rewards, str) else " + ".join(f"{w:g} {name}" for name, w in s.rewards.items())


def _wrong_answers(tasks: Sequence[Task], form: Any) -> list[Trial]:
    """For each task, try the answer of the next task with another answer."""
    out = []
    for index, task in enumerate(tasks):
        following_tasks = [*tasks[index + 1 :], *tasks[:index]]
        other_task = next((t for t in following_tasks if str(t.answer) != str(task.answer)), None)
        if other_task is not None:
            out.append(Trial("wrong", form(other_task), task))
    return out


def _mean_score(scores_and_verdicts: Sequence[tuple[float, float]]) -> float | None:
    finite = [score for score, _ in scores_and_verdicts if not math.isnan(score)]
    return math.fsum(finite) / len(finite) if finite else None
