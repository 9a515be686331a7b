"""The contracts between the stages: what each part is given and what it gives back.

Suffixes name axes: `_R` trajectories, `_S` steps, `_P` path tokens, `_T` stored tokens, `_N` nodes.
Everything that credit and weights receive is detached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from gxpo.forest import Forest


# ---------------------------------------------------------------- tasks
@dataclass(frozen=True)
class Task:
    """What is asked, with what is needed to score it."""

    id: str  # the same string in every step; groups of different steps share it
    prompt: str | tuple[int, ...]
    answer: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)


class TaskSource(Protocol):
    """Where tasks come from. `draw` depends on (`n`, `step`, the source's own state) and on nothing else."""

    def draw(self, n: int, step: int) -> list[Task]: ...
    def observe(self, forest: Forest) -> None: ...
    def held_out(self, n: int) -> list[Task]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


# ---------------------------------------------------------------- sampling
@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()

    @property
    def truncated_support(self) -> bool:
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1.0)


@dataclass(frozen=True)
class StreamKey:
    """Names one stream of uniforms: the same key gives the same numbers, whatever else is in the batch."""

    seed: int
    step: int
    task: str
    attempt: int
    path: tuple[int, ...] = ()
    turn: int = 0


@dataclass(frozen=True)
class Request:
    """One context and a stream for each sample wanted from it."""

    prompt: tuple[int, ...]
    streams: tuple[StreamKey, ...]


@dataclass
class Completion:
    """What was sampled. `logprobs` are of the processed distribution (temperature, support), natural log."""

    tokens: list[int]
    logprobs: list[float]
    finish: str  # "stop" | "length"
    support: np.ndarray | None = None  # [len(tokens), K] int64 allowed ids, padded with -1; None = the whole vocabulary
    policy_version: int = 0


class Engine(Protocol):
    """Who samples tokens."""

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]: ...


@dataclass
class Budget:
    """What generation has cost so far; discarded rollouts included."""

    generated_tokens: int = 0
    rollouts: int = 0
    discarded: int = 0


class Session(Protocol):
    """What a rollout part may do while it grows groups."""

    step: int
    seed: int
    sampling: Sampling
    budget: Budget

    def draw(self, n: int) -> list[Task]: ...
    def encode(self, task: Task) -> tuple[int, ...]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...
    def sample(self, requests: Sequence[Request]) -> list[list[Completion]]: ...
    def score(self, forest: Forest) -> Forest: ...


class Rollout(Protocol):
    """How a group is grown: tasks in, a forest of trajectories out."""

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest: ...


class Reward(Protocol):
    """Named values, each [R] or [S] (float64, nan = could not be scored)."""

    def __call__(self, forest: Forest) -> Mapping[str, Tensor]: ...


# ---------------------------------------------------------------- learning
@dataclass(frozen=True)
class PolicyTokens:
    """What the policies say of every path token; each tensor is [P].

    logprob            current policy, carries the gradient
    behaviour_logprob  who sampled (nan = unknown)
    reference_logprob  frozen reference, for KL
    entropy            of the current policy's distribution at the token (nats), carries the gradient
    proximal_logprob   the learner's policy at the start of the step; without it the ratio is
                       logprob - behaviour_logprob
    value              value head; `outputs`: further named outputs
    """

    logprob: Tensor
    behaviour_logprob: Tensor
    reference_logprob: Tensor | None = None
    entropy: Tensor | None = None
    proximal_logprob: Tensor | None = field(default=None, kw_only=True)
    value: Tensor | None = field(default=None, kw_only=True)
    outputs: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        shape = self.logprob.shape
        for name, x in self._tensors().items():
            if x.shape != shape:
                raise ValueError(f"PolicyTokens.{name} has shape {tuple(x.shape)}, logprob has {tuple(shape)}")

    def _tensors(self) -> dict[str, Tensor]:
        named = {
            k: getattr(self, k)
            for k in ("logprob", "behaviour_logprob", "reference_logprob", "entropy", "proximal_logprob", "value")
        }
        return {k: v for k, v in named.items() if v is not None}

    def index(self, entries: Tensor) -> PolicyTokens:
        """The same policies on a subset of the path tokens."""
        parts: dict[str, Any] = {k: v[entries] for k, v in self._tensors().items()}
        return replace(self, **parts, outputs={k: v[entries] for k, v in self.outputs.items()})


Signals = Mapping[str, Any]  # gxpo.signals.Signals: a mapping whose missing keys raise MissingSignal


class Credit(Protocol):
    """How the score is divided: [P] float64, detached. Adds with `+`."""

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor: ...


class Weight(Protocol):
    """Which rollouts and tokens count, and how much: [P], finite, >= 0. Multiplies with `*`."""

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor: ...


class Term(Protocol):
    """A summand of the objective: a scalar to minimise, one function of the whole optimiser step.

    couples  "token" | "trajectory" | "group" | "step": which entries of x may influence each other's derivative.
    active   [P] bool: entries whose derivative may differ from zero (others need no forward pass).
    """

    couples: str

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Tensor: ...
    def active(self, forest: Forest, credit: Tensor, weight: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class StepInfo:
    """What one optimiser step did."""

    empty: bool  # every coefficient was zero: no step was taken
    loss: float = 0.0
    grad_norm: float = 0.0
    tokens_forward: int = 0  # stored tokens that went through the model with gradient
    tokens_flat: int = 0  # what they would have been without sharing
    microbatches: int = 0
    outputs: Mapping[str, Tensor] = field(default_factory=dict)  # detached policy outputs [P], nan where not computed


LossFunction = Callable[[Mapping[str, "Tensor"]], "Tensor"]  # {"logprob": [P], "entropy": [P], ...} -> scalar, float64


class Learner(Protocol):
    """Holds the policy's parameters; knows forests and L(x), never a method."""

    def outputs(
        self, forest: Forest, names: Sequence[str] = ("logprob",), *, policy: str = "current"
    ) -> dict[str, Tensor]:
        """Detached float64 [P] outputs; `policy` is "current" or "reference". Untrainable entries are computed too."""
        ...

    def step(
        self,
        forest: Forest,
        loss: LossFunction,
        *,
        names: Sequence[str] = ("logprob",),
        couples: str = "token",
        active: Tensor | None = None,
    ) -> StepInfo:
        """One optimiser step on L(x); exact whatever the micro-batches."""
        ...


@runtime_checkable
class StepRunner(Protocol):
    """The learner as an `Update` sees it: the method's loss and signals already bound."""

    def step(self, forest: Forest, credit: Tensor, weight: Tensor, trajectories: Tensor | None = None) -> StepInfo: ...
    def snapshot(self) -> dict[str, torch.Tensor]: ...
    def restore(self, snapshot: Mapping[str, torch.Tensor]) -> None: ...


class Update(Protocol):
    """How parameters move within a step. Default: epochs x minibatches of whole groups."""

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]: ...
