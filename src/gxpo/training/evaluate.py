"""Evaluation on held-out tasks: pass@1, pass@k, 95% intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gxpo.algorithms.signals.masked_observation import picture_kl
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Rollout, Task
from gxpo.sampling.rollouts import Independent
from gxpo.training import statistics
from gxpo.training.session import Session

LOOKED_AT = 256  # attempts of which it is asked what the pictures tell
SHOWN = 8  # tasks whose attempts are kept to be read
EVALUATION = -1  # the step of evaluation's streams: the same draws in every evaluation of a run


@dataclass(frozen=True)
class Evaluation:
    """`verdicts`: each task's mean, for paired comparisons; `shown`: the attempts at the first few tasks."""

    figures: dict[str, float]
    verdicts: dict[str, float]
    shown: Forest


def evaluate(
    tasks: Sequence[Task], samples: int, session: Session, attempts: Callable[[int], Rollout] = Independent
) -> Evaluation:
    """`samples` attempts at each task, made by the rollout part `attempts(samples)`.

    `eval_accuracy` is the mean verdict of the verifier (the outcome, where there is none), with its interval over
    tasks; `eval_pass_at_k` is unbiased. An attempt that could not be scored counts as wrong here, and is counted.
    """
    session.know(tasks)
    forest = session.score(attempts(samples).grow(tasks, session))
    verdict = forest.success if bool(forest.success.isfinite().any()) else forest.outcome
    table = torch.nan_to_num(verdict, nan=0.0).reshape(len(tasks), samples)
    out = {"eval_tasks": float(len(tasks)), "eval_accuracy": float(table.mean())}
    binary = bool(((table == 0) | (table == 1)).all())
    if binary and samples == 1:
        low, high = statistics.wilson_interval(int(table.sum()), len(tasks))
    else:
        low, high = statistics.mean_interval(table.mean(1).tolist())
    out |= {"eval_low": low, "eval_high": high, "eval_unscored": float((~forest.scored).sum())}
    for k in [2**i for i in range(1, 12) if 2**i <= samples] if binary else ():
        correct = table.sum(1).to(torch.int64).tolist()
        out[f"eval_pass_at_{k}"] = sum(statistics.pass_at_k(samples, c, k) for c in correct) / len(tasks)
    for i, name in enumerate(forest.component_names):
        out[f"eval_{name}"] = float(torch.nan_to_num(forest.components[:, i], nan=0.0).mean())
    out["eval_length"] = float(forest.lengths().to(torch.float64).mean())
    out["eval_turns"] = forest.n_steps / forest.n_trajectories
    some = forest.select(range(min(LOOKED_AT, forest.n_trajectories)))
    if some.media and (kl := picture_kl(some, session.learner)) is not None:
        out["eval_picture_kl"] = kl
    verdicts = dict(zip((t.id for t in tasks), table.mean(1).tolist(), strict=True))
    return Evaluation(out, verdicts, forest.select(range(min(SHOWN, len(tasks)) * samples)))
