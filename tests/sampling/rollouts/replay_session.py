"""Scripted sessions of several steps, in which rows bring their scores and tasks have worked solutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tests.sampling.rollouts.scripted_session import RIGHT, UNSCORED, ScriptedSession

from gxpo.environments.rewards import RewardSet
from gxpo.environments.tasks.seeds import SeedTasks
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import EpisodeRules, Sampling, StreamKey, Task
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.models import character_tokenizer, tiny_model
from gxpo.training.session import Session

END = 3  # the token that ends an answer


def right_first(n: int) -> Callable[[StreamKey], int]:
    """The first `n` attempts succeed, the others fail."""
    return lambda stream: int(stream.attempt < n)


class StepSession(ScriptedSession):
    """As `ScriptedSession`, and as the trainer's: an outcome that a row brings is kept, and no row is judged twice.

    solutions  task -> token ids as text, such as "1 7 8"; the first is the verdict, as everywhere here
    """

    def __init__(
        self, script: Callable[[StreamKey], int], *, solutions: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(script, **more)
        self.solutions = dict(solutions or {})
        self.chat: Any = SimpleNamespace(stop_ids=(END, 4))
        self.judged: list[str] = []

    def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
        return tuple(int(word) for word in text.split())

    def solution(self, task: Task) -> str | None:
        return self.solutions.get(task.id)

    def score(self, forest: Forest, texts: Sequence[str] | None = None) -> Forest:
        new = [r for r, name in enumerate(forest.id) if name not in self.judged and not forest.scored[r]]
        self.judged += forest.id
        if not new:
            return forest
        verdict = torch.tensor([forest.action(int(s))[0] for s in _first_steps(forest)], dtype=torch.float64)
        verdict = torch.where(verdict == UNSCORED, torch.nan, verdict)
        fresh = torch.zeros(forest.n_trajectories, dtype=torch.bool).index_fill(0, torch.tensor(new), True)
        own_components = {name: forest.components[:, i] for i, name in enumerate(forest.component_names)}
        known_value = own_components.get("correct", torch.full_like(verdict, torch.nan))
        return forest.with_rewards(
            torch.where(fresh, verdict, forest.outcome),
            components={"correct": torch.where(fresh, verdict, known_value)},
            success=torch.where(fresh, verdict if self.verdicts else torch.nan, forest.success),
        )


ENV = f"{Path(__file__).with_name('countdown_env.py')}:Steps"


@cache
def small_model() -> Any:
    """A small policy in float64, the same for every session."""
    return tiny_model(hidden_size=32, intermediate_size=48, num_hidden_layers=2).to(torch.float64)


def world_session(envs: Any, *, rules: EpisodeRules, sampling: Sampling, step: int) -> Session:
    """The trainer's own session, in an environment."""
    tokenizer, tasks = character_tokenizer(), SeedTasks("steps", lambda seeds: [str(s) for s in seeds])
    return Session(
        source=tasks,
        engine=TorchEngine(small_model(), tokenizer),
        rewards=RewardSet.make(None, source=tasks),
        tokenizer=tokenizer,
        sampling=sampling,
        seed=0,
        step=step,
        envs=envs,
        episode=rules,
    )


def world_tasks(session: Session, n: int) -> list[Task]:
    """The same `n` instances in every step."""
    actual = [Task(f"steps/{seed}", "", info={"seed": seed}) for seed in range(n)]
    session.know(actual)
    return actual


def _first_steps(forest: Forest) -> list[int]:
    return [forest.step_trajectory.tolist().index(r) for r in range(forest.n_trajectories)]


def tasks(*names: str) -> list[Task]:
    return [Task(name, f"{name}?") for name in names]


def train(part: Any, names: Sequence[str], session: StepSession) -> Forest:
    """One step of a trainer as a rollout part sees it."""
    forest = session.score(part.grow(tasks(*names), session))
    part.observe(forest)
    return forest


__all__ = [
    "END", "ENV", "RIGHT", "UNSCORED", "StepSession", "right_first", "small_model", "tasks", "train", "world_session",
    "world_tasks",
]  # fmt: skip
