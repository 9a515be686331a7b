"""Conversations that the engine's tests hold: contexts grow by what was sampled and by what an environment says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gxpo.parts.protocols import Completion, Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine


@dataclass
class Episode:
    """One trajectory: it joins at turn `first` and hears `observations`, one after each action but the last."""

    name: str
    context: tuple[int, ...]
    observations: list[tuple[int, ...]]
    first: int = 0
    named: bool = True
    said: list[Completion] = field(default_factory=list)
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    def speaks(self, turn: int) -> bool:
        return self.first <= turn <= self.first + len(self.observations)

    def request(self, turn: int, *, keep: bool) -> Request:
        key = StreamKey(0, 0, self.name, 0, (), turn)
        return Request(self.context, (key,), (self.name,) if keep and self.named else ())

    def hear(self, turn: int, answer: Completion) -> None:
        self.said.append(answer)
        self.prompts.append(self.context)
        self.context += tuple(answer.tokens)
        if turn - self.first < len(self.observations):
            self.context += self.observations[turn - self.first]


def ragged(seed: int, size: int, vocabulary: int = 23, turns: int = 4) -> list[Episode]:
    """Episodes of 1 to `turns` turns, contexts and observations of 1 to 9 tokens; some join late or share a prompt."""
    generator = torch.Generator().manual_seed(seed)

    def below(n: int) -> int:
        return int(torch.randint(n, (1,), generator=generator))

    def tokens() -> tuple[int, ...]:
        return tuple(2 + below(vocabulary - 2) for _ in range(1 + below(9)))

    shared = tokens()
    return [
        Episode(
            str(i),
            shared if i % 3 == 0 else tokens(),
            [tokens() for _ in range(below(turns))],
            first=below(2),
            named=i % 4 != 1,
        )
        for i in range(size)
    ]


def converse(engine: TorchEngine, episodes: list[Episode], sampling: Sampling, *, keep: bool) -> Iterator[int]:
    """Plays all turns, one call of the engine each; yields the number of the turn just played."""
    for turn in range(max(e.first + len(e.observations) for e in episodes) + 1):
        speaking = [e for e in episodes if e.speaks(turn)]
        answers = engine.sample([e.request(turn, keep=keep) for e in speaking], sampling)
        for episode, (answer,) in zip(speaking, answers, strict=True):
            episode.hear(turn, answer)
        yield turn


def play(engine: TorchEngine, episodes: list[Episode], sampling: Sampling, *, keep: bool) -> list[Episode]:
    for _ in converse(engine, episodes, sampling, keep=keep):
        pass
    return episodes


def forced(model: Any, prompt: tuple[int, ...], completion: Completion, temperature: float) -> list[float]:
    """Log-probs of a completion from a forward pass of it alone, over the stored support, in float64."""
    # torch's fused kernel for bfloat16 refuses processors with AMX where ATEN_CPU_CAPABILITY hides AVX-512
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        logits = model(torch.tensor([[*prompt, *completion.tokens]])).logits[0].double() / temperature
    out = []
    for t, token in enumerate(completion.tokens):
        z = logits[len(prompt) - 1 + t]
        allowed = range(z.numel()) if completion.support is None else [i for i in completion.support[t] if i >= 0]
        out.append(float(z[token]) - math.log(math.fsum(math.exp(float(z[i])) for i in allowed)))
    return out
