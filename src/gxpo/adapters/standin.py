"""Stand-in for a policy and a judge, to try a method where there is no model yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import LossFunction, Output, StepInfo

WORDS, WIDTH = 64, 8


class StandIn:
    """Frozen policy over 64 words, each depending on the word before alone (`gxpo.parts.protocols.Learner`)."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(5)
        self._states = torch.randn(WORDS, WIDTH, generator=draw)
        self._head = torch.randn(WIDTH, WORDS, generator=draw)

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        """Hidden states of the forest's tokens, [T, 8] float32; another layer than the last has half of them."""
        return self._states[forest.token % WORDS] * (1.0 if layer == -1 else 0.5)

    def logits(self, states: Tensor) -> Tensor:
        """Logits [n, 64] of states [n, 8]."""
        return states @ self._head

    def outputs(
        self,
        forest: Forest,
        names: Sequence[str] = ("logprob",),
        *,
        policy: str = "current",
        given: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Policy outputs by name, float64 [P]; [P, K] for the K likeliest ids and [P, K + 1] for their log-probs."""
        before = forest.pack().predecessor[forest.path_token].clamp_min(0)
        spread = self.logits(self.hidden(forest)[before]).double().log_softmax(1)
        target = forest.token[forest.path_token] % WORDS
        return {name: _read(Output(name), spread, target) for name in names}

    def step(self, forest: Forest, loss: LossFunction, *, names: Sequence[str] = ("logprob",), **_: Any) -> StepInfo:
        """Evaluate the loss, so that its parts are tried, and move nothing."""
        return StepInfo(empty=False, loss=float(loss(self.outputs(forest, names))))

    def second_learner(self, *, lr: float) -> StandIn:
        """Return a second model, as for a critic."""
        return StandIn()

    def follow(self, policy: Any, rate: float) -> None:
        """Do nothing: both policies are the same."""

    def snapshot(self) -> dict[str, Tensor]:
        return {}

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Do nothing: there is nothing to restore."""


def _read(output: Output, spread: Tensor, target: Tensor) -> Tensor:
    """Read one output from log-probs of all words, spread [P, 64], and the token that follows, target [P]."""
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
    """Score steps between 0 and 1 by their lengths, in place of a user's judge (`signal.step_judge.score`)."""
    return [len(step) % 5 / 4 for step in steps]
