"""A session whose policy follows a script: a completion's first token is its verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Budget, Completion, EpisodeRules, Request, Sampling, StreamKey, Task

RIGHT, WRONG, UNSCORED = 1, 0, 2


class ScriptedSession:
    """`script(stream)` gives the verdict token of a sample; the completion is that token and the attempt's number."""

    def __init__(
        self,
        script: Callable[[StreamKey], int],
        pool: Sequence[str] = (),
        *,
        step: int = 3,
        sampling: Sampling | None = None,
        shaping: float = 0.0,
        verdicts: bool = True,
    ) -> None:
        self.step, self.seed = step, 5
        self.sampling = sampling or Sampling(max_new_tokens=3)
        self.budget = Budget()
        self.script, self.shaping, self.verdicts = script, shaping, verdicts
        self.pool = list(pool)
        self.chat, self.system, self.envs, self.episode = None, None, None, EpisodeRules()
        self.drawn: list[int] = []
        self.streams: list[StreamKey] = []

    def draw(self, n: int) -> list[Task]:
        self.drawn.append(n)
        names, self.pool = self.pool[:n], self.pool[n:]
        return [Task(name, f"{name}?") for name in names]

    def encode(self, task: Task) -> tuple[int, ...]:
        return tuple(task.id.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    def sample(self, requests: Sequence[Request]) -> list[list[Completion]]:
        out = []
        for request in requests:
            self.streams += request.streams
            out.append([self._complete(stream) for stream in request.streams])
            self.budget.rollouts += len(request.streams)
            self.budget.generated_tokens += sum(len(c.tokens) for c in out[-1])
        return out

    def _complete(self, stream: StreamKey) -> Completion:
        tokens = [self.script(stream), 10 + stream.attempt] + [9] * (stream.attempt % 2)
        support = np.full((len(tokens), 2 + stream.attempt), -1) if self.sampling.truncated_support else None
        if support is not None:
            support[:, 0] = tokens
        finish = "length" if len(tokens) == self.sampling.max_new_tokens else "stop"
        return Completion(tokens, [-0.5 * t for t in tokens], finish, support, policy_version=self.step)

    def score(self, forest: Forest) -> Forest:
        verdicts = [forest.token[forest.path_token[forest.path_of(r)]][0] for r in range(forest.n_trajectories)]
        first = torch.tensor(verdicts, dtype=torch.float64)
        verdict = torch.where(first == UNSCORED, torch.nan, first)
        outcome = verdict + self.shaping * torch.arange(forest.n_trajectories)
        success = verdict if self.verdicts else torch.full_like(verdict, torch.nan)
        return forest.with_rewards(outcome, components={"correct": verdict}, success=success)
