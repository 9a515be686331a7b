"""Token after token: a batch of prompts that went through becomes a batch of completions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gxpo.engines.draw import draw
from gxpo.engines.stopping import Stopping
from gxpo.protocols import Completion, Sampling

KEEP_UNTIL = 7 / 8  # rows still running, of those in the batch, below which the finished ones are taken out


class Batch(Protocol):
    """Samples between two tokens."""

    @property
    def logits(self) -> Tensor: ...
    def advance(self, token: Tensor) -> Batch: ...
    def select(self, rows: Tensor) -> Batch: ...
    def columns(self, row: int, prompt: int, tokens: int) -> list[tuple[Tensor, Tensor]]: ...


Leave = Callable[[int, int, Batch, "list[int]"], None]  # sample, its row of the batch, the batch, the action's tokens


@dataclass
class Drawn:
    """What was drawn so far for n samples: tokens, logprobs [n, longest], length, stopped [n], supports by step."""

    tokens: Tensor
    logprobs: Tensor
    length: Tensor
    stopped: Tensor
    supports: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (samples, support) of every step

    @staticmethod
    def empty(n: int, longest: int) -> Drawn:
        return Drawn(
            torch.zeros(n, longest, dtype=torch.int64),
            torch.zeros(n, longest, dtype=torch.float64),
            torch.zeros(n, dtype=torch.int64),
            torch.zeros(n, dtype=torch.bool),
        )

    def action(self, sample: int) -> list[int]:
        return self.tokens[sample, : int(self.length[sample])].tolist()

    def completions(self, policy_version: int) -> list[Completion]:
        support = self._support()
        out = []
        for i, (size, stop) in enumerate(zip(self.length.tolist(), self.stopped.tolist(), strict=True)):
            own = None
            if support is not None:
                own = support[i, :size]
                own = own[:, : int((own >= 0).sum(1).max())].copy()
            out.append(
                Completion(
                    tokens=self.tokens[i, :size].tolist(),
                    logprobs=self.logprobs[i, :size].tolist(),
                    finish="stop" if stop else "length",
                    support=own,
                    policy_version=policy_version,
                )
            )
        return out

    def _support(self) -> np.ndarray | None:
        """[n, steps, widest] int64 padded with -1; None where nothing was cut."""
        if not self.supports:
            return None
        widest = max(allowed.shape[1] for _, allowed in self.supports)
        support = np.full((self.tokens.shape[0], len(self.supports), widest), -1, dtype=np.int64)
        for step, (samples, allowed) in enumerate(self.supports):
            support[samples.numpy(), step, : allowed.shape[1]] = allowed.numpy()
        return support


def decode(state: Batch, streams: np.ndarray, sampling: Sampling, stopping: Stopping, leave: Leave) -> Drawn:
    """Draws until every row is done or out of uniforms; streams [n, longest] float64.

    `leave` is called once for every sample, when it is done and before its row is taken out of the batch. The cache
    then holds at least all but the last token of its action.
    """
    n, longest = streams.shape
    uniform = torch.from_numpy(streams).to(state.logits.device)
    out = Drawn.empty(n, longest)
    samples = torch.arange(n)  # which sample each row of the batch is
    for step in range(longest):
        drawn = draw(state.logits, uniform[samples, step], sampling)
        token, running = drawn.token.cpu(), ~out.stopped[samples]
        out.tokens[samples, step], out.logprobs[samples, step] = token, drawn.logprob.cpu()
        out.length[samples[running]] = step + 1
        if drawn.support is not None:
            out.supports.append((samples, drawn.support.cpu()))
        out.stopped[samples] |= stopping.done(token, out.tokens[samples, : step + 1])
        running = ~out.stopped[samples]
        if step + 1 == longest or not bool(running.any()):
            break
        if int(running.sum()) <= KEEP_UNTIL * samples.numel():
            _leave(out, samples, ~running, state, leave)
            kept = running.nonzero().squeeze(1)
            samples, token, state = samples[kept], token[kept], state.select(kept.to(uniform.device))
        state = state.advance(token.to(uniform.device))
    _leave(out, samples, torch.ones_like(samples, dtype=torch.bool), state, leave)
    return out


def _leave(out: Drawn, samples: Tensor, going: Tensor, state: Batch, leave: Leave) -> None:
    for row in going.nonzero().squeeze(1).tolist():
        sample = int(samples[row])
        leave(sample, row, state, out.action(sample))
