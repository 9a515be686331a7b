"""Evaluation on held-out tasks: pass@1, pass@k, 95% intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gxpo.forest import Forest
from gxpo.protocols import Budget, Engine, Request, Sampling, StreamKey, Task, TaskSource
from gxpo.trainer import statistics
from gxpo.trainer.session import Session

EVALUATION = -1  # the step of evaluation's streams: the same draws in every evaluation of a run


def evaluate(
    tasks: Sequence[Task],
    *,
    samples: int,
    sampling: Sampling,
    engine: Engine,
    rewards: Any,
    tokenizer: Any,
    source: TaskSource,
    seed: int,
) -> tuple[dict[str, float], dict[str, float]]:
    """`eval_accuracy` is the mean verdict of the verifier (the outcome, where there is none), with its interval over
    tasks; `eval_pass_at_k` is unbiased. A completion that could not be scored counts as wrong here, and is counted.
    Also gives each task's mean verdict, for paired comparisons."""
    session = Session(
        source=source,
        engine=engine,
        rewards=rewards,
        tokenizer=tokenizer,
        sampling=sampling,
        seed=seed,
        step=EVALUATION,
        budget=Budget(),
    )
    session.know(tasks)
    prompts = [session.encode(t) for t in tasks]
    requests = [
        Request(p, tuple(StreamKey(seed, EVALUATION, t.id, i) for i in range(samples)))
        for p, t in zip(prompts, tasks, strict=True)
    ]
    groups = session.sample(requests)
    forest = Forest.from_completions(
        prompts,
        [[c.tokens for c in g] for g in groups],
        groups=[t.id for t in tasks],
        tasks=[t.id for t in tasks],
        finish=[c.finish for g in groups for c in g],
        truncated=[c.finish == "length" for g in groups for c in g],
        ids=[f"{t.id}/{i}" for t in tasks for i in range(samples)],
    )
    forest = session.score(forest)
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
    return out, dict(zip((t.id for t in tasks), table.mean(1).tolist(), strict=True))
