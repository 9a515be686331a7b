"""A reward function called on a run's logged completions, as they are and in mended forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gxpo.base.errors import ConfigError
from gxpo.base.processes import Ended, Process
from gxpo.doctor.finding import Finding
from gxpo.doctor.rollout_sample import spread
from gxpo.doctor.rollout_texts import closed_only
from gxpo.doctor.rollouts import REFERENCES
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Floats
from gxpo.doctor.sickness import finding
from gxpo.explain.trials import FORMS, Trial
from gxpo.parts.protocols import Task

MOST = 48  # completions that are scored, spread over the run
RAISED = 0.1  # share of completions whose score a mended form raises, from which the form was to blame
SECONDS = 60.0  # for all of them
PROGRAM = Path(__file__).with_name("logged_reward_child.py")


def check(log: RunLog, reward: str) -> tuple[Finding | None, str]:
    """Score logged completions again; returns a finding if the reward rejects their form, and a line on what it gave.

    reward   `file.py:function`: of one completion, or TRL's of all

    Forms that are tried: the tag before it that a completion closes and does not open, the completion as a list of
    messages, and the reference answer in the usual forms. Where another form of the same completion scores more, its
    form was rejected, not its answer.
    """
    rollouts = log.training_rollouts
    if rollouts is None or not len(rollouts):
        return None, f"{reward} was not called: no completions were read"
    rows = spread(len(rollouts), MOST)
    tasks = [_task(rollouts.prompt[i], rollouts.reference[i]) for i in rows]
    trials = [Trial("as logged", rollouts.completion[i], task) for i, task in zip(rows, tasks, strict=True)]
    tag, is_closed_only = closed_only([t.text for t in trials])
    if is_closed_only.mean() > 0.5:
        trials += [Trial(f"with <{tag}> before it", f"<{tag}>\n{t.text}", t.task) for t in trials[: len(rows)]]
    # as a chat: TRL gives the function lists of messages where prompts are such
    chats = [replace(t, prompt=({"role": "user", "content": str(t.prompt)},)) for t in tasks]
    trials += [Trial("as a list of messages", rollouts.completion[i], t) for i, t in zip(rows, chats, strict=True)]
    has_answer = [t.answer is not None for t in tasks]
    if all(has_answer):
        trials += [Trial(f"reference answer, {name}", form(t), t) for name, form in FORMS.items() for t in tasks]
    try:
        flat_scores, message = _scores(reward, trials, tasks)
    except Ended as error:
        return None, f"{reward} gave no score to the logged completions: {error}"
    scores = flat_scores.reshape(-1, len(rows))
    kinds = [trials[n * len(rows)].kind for n in range(len(scores))]
    logged = scores[0]
    if not np.isfinite(logged).any():
        return None, f"{reward} gave no score to the logged completions: {message}"
    same = float(np.nanmean(np.abs(logged - rollouts.score[rows]) < 1e-6))
    line = (
        f"{reward} on {len(rows)} logged completions: mean {np.nanmean(logged):.3g}, as logged for {same:.0%} of them"
    )
    raised_by_form = {kind: float((scores[n] > logged + 1e-9).mean()) for n, kind in enumerate(kinds) if n}
    # a mended form of the policy's own answers proves it; a reference only shows what the reward accepts
    mended_by_form = {kind: share for kind, share in raised_by_form.items() if not kind.startswith("reference")}
    best = max(mended_by_form, key=lambda kind: mended_by_form[kind])
    if mended_by_form[best] < RAISED:
        best_item = max(raised_by_form.items(), key=lambda item: item[1])
        is_accepted = best_item[1] > 0.5 and float(np.nanmax(logged)) <= float(np.nanmin(logged))
        return None, f"{line}; {best_item[0]}: {best_item[1]:.0%} score more" if is_accepted else line
    higher = np.flatnonzero(scores[kinds.index(best)] > logged + 1e-9)
    return (
        finding(
            "verifier_rejects_right_answers",
            "critical",
            "proved",
            "the reward function rejects the form of the completions, not their answers",
            line,
            f"{best}: {mended_by_form[best]:.0%} of them score more, mean {np.nanmean(scores[kinds.index(best)]):.3g}",
            examples=() if log.facts is None else log.facts.examples(rows[i] for i in higher),
        ),
        line,
    )


def _scores(reward: str, trials: Sequence[Trial], tasks: Sequence[Task]) -> tuple[Floats, str]:
    """Scores of the trials, nan where there is none, and what went wrong; `Ended` where the function takes too long."""
    process = Process(str(PROGRAM))
    try:
        process.send([(reward, list(trials), list(tasks))])
        answer = process.receive(SECONDS, dict)
    finally:
        process.close()
    if "error" in answer:
        raise ConfigError(answer["error"])
    return np.array([np.nan if score is None else score for score in answer["scores"]]), answer["message"]


def _task(prompt: str, reference: str | None) -> Task:
    """A task of a logged prompt, its reference under all usual names of a data set's column."""
    answer: Any = None if reference is None else reference
    return Task("", prompt, answer, {} if answer is None else dict.fromkeys(REFERENCES, answer))
