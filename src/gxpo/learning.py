"""The contracts of learning: what the policies say of every token, and what credit, weights, terms and learners give.

Suffixes name axes: `_R` trajectories, `_P` path tokens, `_T` stored tokens. All that credit and weights receive is
detached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gxpo.forest import Forest

T = TypeVar("T")


class Output(str):
    """A request for an output of the policy at each token. It is its own name, by which results are keyed, so a name
    serves wherever a request does: `Output(name)` reads one.

    kind    "logprob" | "entropy" | "mean_logprob" (over the vocabulary) | "value" | "divergence" (to a teacher) |
            "likeliest" | "likeliest_logprob"
    at      after "@", "" for none: the inner layer, or share of the depth, that the head reads; the value head's name;
            the divergence's mixture; how many of the likeliest
    normed  False, written "unnormed_": the head reads an inner layer's state without the final norm

    >>> Output("logprob", 0.25, normed=False), Output("value@low").kind, Output("value@low").at
    ('unnormed_logprob@0.25', 'value', 'low')
    """

    kind: str
    at: str
    normed: bool

    def __new__(cls, kind: str, at: str | float = "", *, normed: bool = True) -> Output:
        made = super().__new__(cls, f"{'' if normed else 'unnormed_'}{kind}{'' if at == '' else '@'}{at}")
        front, _, made.at = made.partition("@")
        made.kind = front.removeprefix("unnormed_")
        made.normed = made.kind == front
        return made


ALIASES = {"old_logprob": "proximal_logprob", "rollout_logprob": "behaviour_logprob"}  # TRL's and verl's names


def _aliased(kind: type[T]) -> type[T]:
    """A dataclass that takes its fields by their names in `ALIASES` too."""
    init = kind.__init__

    @wraps(init)
    def named(self: Any, *args: Any, **given: Any) -> None:
        for other, name in ALIASES.items():
            if other in given:
                if name in given:
                    raise TypeError(f"{kind.__name__}: {other} and {name} are one: give one of them")
                given[name] = given.pop(other)
        init(self, *args, **given)

    kind.__init__ = named
    return kind


@_aliased
@dataclass(frozen=True)
class PolicyTokens:
    """Log-probs of the current, rollout, old and reference policies at every action token; each tensor is [P].

    logprob            current policy, carries the gradient
    behaviour_logprob  rollout policy, which sampled (nan = unknown); also `rollout_logprob`
    reference_logprob  frozen reference, for KL
    entropy            of the current policy's distribution at the token (nats), carries the gradient
    proximal_logprob   old policy: the learner's at the start of the step; also `old_logprob`; without it the ratio
                       is logprob - behaviour_logprob
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

    @property
    def rollout_logprob(self) -> Tensor:
        """`behaviour_logprob`."""
        return self.behaviour_logprob

    @property
    def old_logprob(self) -> Tensor | None:
        """`proximal_logprob`."""
        return self.proximal_logprob

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


Signals = Mapping[str, Any]  # gxpo.signals.Signals: its missing keys raise MissingSignal


class Credit(Protocol):
    """How the score is divided: [P] float64, detached. Adds with `+`."""

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor: ...


class Weight(Protocol):
    """Which rollouts and tokens count, and how much: [P], finite, >= 0. Multiplies with `*`."""

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor: ...


class Term(Protocol):
    """A summand of the objective: one function of the whole optimiser step, which gives a scalar to minimise and
    figures by metric name, without gradient. (A scalar alone has its figures from `metrics`, a method of the same
    arguments but the last.)

    couples  "token" | "trajectory" | "group" | "step": which entries of x may influence each other's derivative.
    active   [P] bool: entries whose outputs it reads (others need no forward pass, and may hold anything).
    """

    couples: str

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> tuple[Tensor, Mapping[str, float]] | Tensor: ...
    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor: ...


@dataclass(frozen=True)
class StepInfo:
    """What one optimiser step did."""

    empty: bool  # every coefficient was zero: no step was taken
    loss: float = 0.0
    grad_norm: float = 0.0
    tokens_forward: int = 0  # stored tokens that went through the model with gradient
    tokens_flat: int = 0  # what they would have been without sharing
    microbatches: int = 0
    moved: float | None = None  # share of the low-precision weights that changed; None: there are none
    nonfinite: str = ""  # the first parameter whose gradient was not finite: no step was taken
    outputs: Mapping[str, Tensor] = field(default_factory=dict)  # detached policy outputs [P], nan where not computed


LossFunction = Callable[[Mapping[str, "Tensor"]], "Tensor"]  # {"logprob": [P], "entropy": [P], ...} -> scalar, float64


class Learner(Protocol):
    """Holds the policy's parameters; knows forests and L(x), never a method."""

    def outputs(
        self,
        forest: Forest,
        names: Sequence[str] = ("logprob",),
        *,
        policy: str = "current",
        given: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Detached float64 [P] outputs ([P, K] of some); `policy` is "current" or "reference". Untrainable entries are
        computed too. `given`: constants [P, ...] that some outputs are made with."""
        ...

    def follow(self, policy: Any, rate: float) -> None:
        """Every parameter moves that share of its way to another's of the same model."""
        ...

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        """[T, H] float32: the current policy's hidden state at every stored token, after that layer."""
        ...

    def logits(self, states: Tensor) -> Tensor:
        """[n, V] float32 at least: the current policy's logits of rows [n, H] of its last hidden states."""
        ...

    def beside(self, *, lr: float) -> Learner:
        """Another learner of the same kind, from a copy of the parameters, with an optimiser of its own."""
        ...

    def step(
        self,
        forest: Forest,
        loss: LossFunction,
        *,
        names: Sequence[str] = ("logprob",),
        couples: str = "token",
        active: Tensor | None = None,
        given: Mapping[str, Tensor] | None = None,
    ) -> StepInfo:
        """One optimiser step on L(x); exact whatever the micro-batches."""
        ...


@runtime_checkable
class StepRunner(Protocol):
    """The learner as an `Update` sees it: the method's loss and signals already bound."""

    def step(self, forest: Forest, credit: Tensor, weight: Tensor, trajectories: Tensor | None = None) -> StepInfo: ...
    def logprob(self) -> torch.Tensor:
        """[P] detached log-probs of all the step's rollouts by the policy as it is now; one more forward pass."""
        ...

    def renew(self) -> None:
        """From here on the proximal policy of a step is the policy before it: its ratio is exactly 1."""
        ...

    def snapshot(self) -> dict[str, torch.Tensor]:
        """A copy of the parameters; the optimiser's moments are not part of it."""
        ...

    def restore(self, snapshot: Mapping[str, torch.Tensor]) -> None: ...

    # for updates that take steps of their own
    def evaluate(self, forest: Forest, credit: Tensor, weight: Tensor) -> StepInfo:
        """The objective (`loss`) and the outputs of the policy as it is now; one more forward pass, no step."""
        ...

    def gradient(
        self, forest: Forest, credit: Tensor, weight: Tensor, slope: Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """By parameter name, without a step: of the objective, or of sum_p slope_p logprob_p."""
        ...

    def record(self, forest: Forest, credit: Tensor, weight: Tensor, info: StepInfo) -> StepInfo:
        """Counts a step that the update has taken by itself; its figures are of `info.outputs`."""
        ...


class Update(Protocol):
    """How parameters move within a step. Default: epochs x minibatches of whole groups."""

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]: ...
