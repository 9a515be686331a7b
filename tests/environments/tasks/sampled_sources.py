"""A list of five tasks under a sampler, and forests of right and wrong answers to them."""

from __future__ import annotations

from typing import Any

import torch

import gxpo
from gxpo.environments.tasks.listed import ListedTasks
from gxpo.environments.tasks.sampled import SampledTasks, sampled
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task

RIGHT = {"a": 0, "b": 1, "c": 4, "d": 7, "e": 8}  # of 8 answers each


def tensor(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


class Listed(ListedTasks):
    def __init__(self, names: str, per_step: int = 3, **info: Any) -> None:
        self.name, self.seed, self.per_step = "listed", 0, per_step
        own_values = {name: {key: values[i] for key, values in info.items()} for i, name in enumerate(names)}
        tasks = [Task(name, f"{name}?", name, own_values[name]) for name in names]
        self.split(tasks, [Task("held", "h?", "h")], 0.5)


def sampled_source(kind: Any, source: Any = None, level_source: Any = None, **options: Any) -> SampledTasks:
    keys = {"tasks.sampler": kind, **{f"tasks.sampler.{k}": v for k, v in options.items()}}
    sampler = gxpo.method("grpo", keys).sampler
    return sampled(source or Listed("abcde"), sampler, 0, "mine", level_source)


def answers(right: dict[str, int], n: int = 8, origin: str = "policy", logprob: float = -1.0) -> Forest:
    """`n` answers to each task, the first of them right."""
    names = list(right)
    rows = [[1.0] * right[name] + [0.0] * (n - right[name]) for name in names]
    forest = Forest.from_completions([[i + 1] for i in range(len(names))], [[[5]] * n] * len(names), rows, success=rows)
    lengths = torch.full((forest.n_tokens,), logprob, dtype=torch.float64)
    return forest.replace(
        task=[name for name in names for _ in range(n)], origin=[origin] * len(forest.origin), behaviour_logprob=lengths
    )


def chances(source: SampledTasks) -> list[float]:
    return source.chances().tolist()
