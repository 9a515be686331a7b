"""Evaluation on held-out tasks: pass@1, pass@k, 95% intervals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gxpo.algorithms.signals.masked_observation import picture_kl
from gxpo.base.answers import ANSWER, extract
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Rollout, Task
from gxpo.sampling.rollouts import Independent
from gxpo.training import statistics, voting
from gxpo.training.session import Session
from gxpo.training.step_figures import result_figures

LOOKED_AT = 256  # attempts on which the use of pictures is measured
SHOWN = 8  # tasks whose attempts are kept as samples
EVALUATION = -1  # the step of evaluation's streams: the same draws in every evaluation of a run


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation: figures, each task's mean verdict for paired comparisons, and samples of attempts."""

    figures: dict[str, float]
    verdicts: dict[str, float]
    samples: Forest


def evaluate(
    tasks: Sequence[Task],
    samples: int,
    session: Session,
    attempts: Callable[[int], Rollout] = Independent,
    vote: str | None = None,
) -> Evaluation:
    """Evaluate a policy on tasks: `samples` attempts at each, by the rollout part `attempts(samples)`.

    `eval_accuracy` is the mean verdict of the verifier (the outcome, where there is none), with its interval over
    tasks; `eval_pass_at_k` is unbiased. An attempt that could not be scored counts as wrong here, and is counted.
    `vote` adds `gxpo.training.voting`: "count", or the component that weights the votes.
    """
    # Held-out tasks are unknown to a session that draws its own.
    session.know(tasks)
    forest = session.score(attempts(samples).grow(tasks, session))
    # A source may have a verifier for training and none for held-out tasks.
    verdict = forest.success if bool(forest.success.isfinite().any()) else forest.outcome
    verdict_table = torch.nan_to_num(verdict, nan=0.0).reshape(len(tasks), samples)
    figures = {"eval_tasks": float(len(tasks)), "eval_accuracy": float(verdict_table.mean())}
    # Wilson's interval is for shares of right answers; means of several samples, or of other scores, take Student's.
    is_binary = bool(((verdict_table == 0) | (verdict_table == 1)).all())
    if is_binary and samples == 1:
        low, high = statistics.wilson_interval(int(verdict_table.sum()), len(tasks))
    else:
        low, high = statistics.mean_interval(verdict_table.mean(1).tolist())
    figures |= {"eval_low": low, "eval_high": high, "eval_unscored": float((~forest.scored).sum())}
    # pass@k at powers of 2 alone: each k needs verdicts of 0 or 1.
    for k in [2**i for i in range(1, 12) if 2**i <= samples] if is_binary else ():
        correct = verdict_table.sum(1).to(torch.int64).tolist()
        figures[f"eval_pass_at_{k}"] = sum(statistics.pass_at_k(samples, c, k) for c in correct) / len(tasks)
    if vote:
        figures |= _votes(forest, session, verdict_table.tolist(), vote)
    for i, name in enumerate(forest.component_names):
        # An unscored component counts as 0, as the verdict does.
        figures[f"eval_{name}"] = float(torch.nan_to_num(forest.components[:, i], nan=0.0).mean())
    figures |= {f"eval_{name}": share for name, share in result_figures(forest).items()}
    by_opponent: dict[str, list[float]] = {}
    for info, verdict_of_one in zip(forest.info, verdict_table.reshape(-1).tolist(), strict=True):
        by_opponent.setdefault(info.get("opponent", ""), []).append(verdict_of_one)
    if len(by_opponent) > 1:
        figures |= {f"eval_win_{name or 'self'}": sum(x) / len(x) for name, x in by_opponent.items()}
    figures["eval_length"] = float(forest.lengths().to(torch.float64).mean())
    figures["eval_turns"] = forest.n_steps / forest.n_trajectories
    # Masking the pictures costs a forward pass for each attempt, so it is measured on some of them.
    looked_at = forest.select(range(min(LOOKED_AT, forest.n_trajectories)))
    if looked_at.media and (kl := picture_kl(looked_at, session.learner)) is not None:
        figures["eval_picture_kl"] = kl
    verdicts = dict(zip((t.id for t in tasks), verdict_table.mean(1).tolist(), strict=True))
    # The first tasks with all their samples are shown to the user.
    return Evaluation(figures, verdicts, forest.select(range(min(SHOWN, len(tasks)) * samples)))


def _votes(forest: Forest, session: Session, verdicts: Sequence[Sequence[float]], vote: str) -> dict[str, float]:
    """Figures of the votes of each task's attempts: by count, or weighted by a component."""
    samples = len(verdicts[0])
    if samples < 2:
        raise ConfigError("eval.vote needs several samples a task: set eval.samples to 3 or more")
    if vote != "count" and vote not in forest.component_names:
        names = ", ".join(("count", *forest.component_names))
        raise ConfigError(f"eval.vote: {vote!r} is no component of this run's rewards; there are {names}")
    answers = [extract(text, re.compile(ANSWER)) for text in session.texts(forest)]
    weights = None
    if vote != "count":
        weights = forest.components[:, forest.component_names.index(vote)].tolist()
    # attempts at one task lie next to each other
    choices = [
        voting.choice_of(answers[i : i + samples], None if weights is None else weights[i : i + samples])
        for i in range(0, len(answers), samples)
    ]
    return voting.figures(choices, verdicts)
