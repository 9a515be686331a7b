"""Stand-ins for a policy, a judge and a trainer's rollouts, to try a method where there is no model yet."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gxpo.adapters.sessions import TrainerSession
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, LossFunction, Output, Sampling, StepInfo, StreamKey, Task

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
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Policy outputs by name, float64 [P]; [P, K] for the K likeliest ids and [P, K + 1] for their log-probs."""
        before = forest.pack().predecessor[forest.path_token].clamp_min(0)
        logprob_PV = self.logits(self.hidden(forest)[before]).double().log_softmax(1)
        target = forest.token[forest.path_token] % WORDS
        return {name: _read(Output(name), logprob_PV, target) for name in names}

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
        other_logprob = (1.0 - best.exp().sum(1, keepdim=True)).clamp_min(1e-12).log()
        return torch.cat([best, other_logprob], 1)
    return spread.gather(1, target[:, None]).squeeze(1)


def scores(task: str, steps: Sequence[str], seen: Sequence[str]) -> list[float]:
    """Score steps between 0 and 1 by their lengths, in place of a user's judge (`signal.step_judge.score`)."""
    return [len(step) % 5 / 4 for step in steps]


# ---------------------------------------------------------------- rollouts
SAMPLING = Sampling(max_new_tokens=16)
STOP = 2  # token that ends a completion
KINDS = 4  # of tasks: mixed groups, all wrong, all right, graded rewards


class TrialSession(TrainerSession):
    """Session of synthetic rollouts: 2 to 8 tokens each, rewards by the kind of the task and the attempt's number.

    verdicts, components  as of `asks.synthetic`
    changed  fact of `asks.FACTS` that differs from the plain session
    """

    def __init__(
        self,
        step: int,
        *,
        verdicts: bool,
        components: Sequence[str],
        changed_fact: str = "",
        segmenter: Any = None,
    ) -> None:
        chat: Any = SimpleNamespace(stop_ids=(STOP,))
        super().__init__(step=step, seed=0, sampling=SAMPLING, chat=chat, segmenter=segmenter, learner=StandIn())
        self._verdicts, self._components, self._changed_fact = verdicts, components, changed_fact

    def tasks_of(self, begin: int, n: int) -> list[Task]:
        info = {"solution": "3 4 5 6"}
        return [Task(f"task{i}", f"{i} + {i}", answer=str(i), info=info) for i in range(begin, begin + n)]

    def complete(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[StreamKey], sampling: Sampling
    ) -> list[Completion]:
        return [self._completion(_number(k), sampling.max_new_tokens) for k in keys]

    def _completion(self, number: int, room: int) -> Completion:
        offset, order = (7 if self._changed_fact == "ids" else 0), (5 if self._changed_fact == "logprobs" else 7)
        tokens = [3 + (number >> (3 * i)) % 53 + offset for i in range(1 + number % 7)]
        tokens = [*tokens, STOP][:room]
        logprobs = [-0.1 - 0.05 * (number % order) - 0.02 * i for i in range(len(tokens))]
        return Completion(tokens, logprobs, "stop" if tokens[-1] == STOP else "length")

    def judge(self, forest: Forest, texts: Sequence[str] | None, tasks: Sequence[Task]) -> Forest:
        number = [_number(name) for name in forest.id]
        kind = [int(task.id.removeprefix("task")) % KINDS for task in tasks]
        rewards = [[n % 2, 0, 1, n % 10 / 10][k] for n, k in zip(number, kind, strict=True)]
        # mixed and graded groups have both verdicts in their first two attempts; what is given to the policy is right
        for r, (name, k) in enumerate(zip(forest.id, kind, strict=True)):
            if k in (0, 3) and name.endswith(("/0", "/1")):
                rewards[r] = float(name.endswith("/0"))
            if forest.origin[r] == "demonstration":
                rewards[r] = 1.0
        outcome = torch.tensor(rewards, dtype=torch.float64)
        first = outcome.flip(0) if self._changed_fact == "components" else outcome
        return forest.with_rewards(
            outcome,
            components={name: torch.roll(first, k) for k, name in enumerate(self._components)},
            success=(outcome >= 1).double() if self._verdicts else None,
        )

    def encode(self, task: Task) -> tuple[int, ...]:
        return self.tokenize(str(task.prompt))

    def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
        return tuple(3 + ord(c) % 60 for c in text[-4:])

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens)).replace(" 4", "\n")


def _number(*key: object) -> int:
    return zlib.crc32("/".join(map(str, key)).encode())
