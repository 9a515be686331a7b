"""A stand-in for a policy: a method is tried with it where there is no model yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import LossFunction, Output, StepInfo

WORDS, WIDTH = 64, 8


class StandIn:
    """`gxpo.parts.protocols.Learner` over 64 words whose next one depends on the last alone; nothing moves it."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(5)
        self._states = torch.randn(WORDS, WIDTH, generator=draw)
        self._head = torch.randn(WIDTH, WORDS, generator=draw)

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        """[T, 8] float32."""
        return self._states[forest.token % WORDS] * (1.0 if layer == -1 else 0.5)

    def logits(self, states: Tensor) -> Tensor:
        """[n, 64] of states [n, 8]."""
        return states @ self._head

    def outputs(
        self,
        forest: Forest,
        names: Sequence[str] = ("logprob",),
        *,
        policy: str = "current",
        given: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Float64 [P], or [P, K] of the likeliest ids."""
        before = forest.pack().predecessor[forest.path_token].clamp_min(0)
        spread = self.logits(self.hidden(forest)[before]).double().log_softmax(1)
        target = forest.token[forest.path_token] % WORDS
        return {name: _read(Output(name), spread, target) for name in names}

    def step(self, forest: Forest, loss: LossFunction, *, names: Sequence[str] = ("logprob",), **_: Any) -> StepInfo:
        """Nothing moves, and the loss is still asked for."""
        return StepInfo(empty=False, loss=float(loss(self.outputs(forest, names))))

    def beside(self, *, lr: float) -> StandIn:
        return StandIn()

    def follow(self, policy: Any, rate: float) -> None:
        """Both are the same."""

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """There is nothing to restore."""


def _read(output: Output, spread: Tensor, target: Tensor) -> Tensor:
    if output.kind == "entropy":
        return -(spread.exp() * spread).sum(1)
    if output.kind == "mean_logprob":
        return spread.mean(1)
    if output.kind in ("likeliest", "likeliest_logprob"):
        best, ids = spread.topk(min(int(output.at), WORDS))
        if output.kind == "likeliest":
            return ids.double()
        rest = (1.0 - best.exp().sum(1, keepdim=True)).clamp_min(1e-12).log()
        return torch.cat([best, rest], 1)
    return spread.gather(1, target[:, None]).squeeze(1)


def scores(task: str, steps: Sequence[str], seen: Sequence[str]) -> list[float]:
    """In place of a user's judge of steps (`signal.step_judge.score`)."""
    return [len(step) % 5 / 4 for step in steps]
