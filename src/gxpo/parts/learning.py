"""Protocols of learning: policies' outputs and signals, advantages, weights, loss terms, learners, updates.

Suffixes name axes: `_R` trajectories, `_P` path tokens, `_T` stored tokens. All that credit and weights receive is
detached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from gxpo.base.errors import MissingSignal

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from gxpo.forest.forest import Forest

T = TypeVar("T")


class Output(str):
    """A request for a per-token output of the policy. It equals its own name, by which results are keyed, so a name can
    be used wherever a request can: `Output(name)` reads one.

    kind    "logprob" | "entropy" | "mean_logprob" (over the vocabulary) | "value" | "divergence" (to a teacher) |
            "expected_score" (of the sampler) | "likeliest" | "likeliest_logprob"
    at      after "@", "" for none: the inner layer, or share of the depth, that the head reads; the value head's name;
            the divergence's mixture; the cap of the weights, or "none"; how many of the likeliest
    normed  False, written "unnormed_": the head reads an inner layer's state without the final norm

    >>> Output("logprob", 0.25, normed=False), Output("value@low").kind, Output("value@low").at
    ('unnormed_logprob@0.25', 'value', 'low')
    """

    kind: str
    at: str
    normed: bool

    def __new__(cls, kind: str, at: str | float = "", *, normed: bool = True) -> Output:
        output = super().__new__(cls, f"{'' if normed else 'unnormed_'}{kind}{'' if at == '' else '@'}{at}")
        front, _, output.at = output.partition("@")
        output.kind = front.removeprefix("unnormed_")
        output.normed = output.kind == front
        return output


ALIASES = {"old_logprob": "proximal_logprob", "rollout_logprob": "behaviour_logprob"}  # TRL's and verl's names


def _accept_aliases(kind: type[T]) -> type[T]:
    """A dataclass that takes its fields by their names in `ALIASES` too."""
    # the constructor alone knows aliases: fields, `replace` and records have one name for each value
    init = kind.__init__

    @wraps(init)
    def init_with_aliases(self: Any, *args: Any, **keywords: Any) -> None:
        for alias, name in ALIASES.items():
            if alias in keywords:
                # both spellings: neither may win in silence
                if name in keywords:
                    raise TypeError(f"{kind.__name__}: {alias} and {name} are one: give one of them")
                keywords[name] = keywords.pop(alias)
        init(self, *args, **keywords)

    kind.__init__ = init_with_aliases
    return kind


@_accept_aliases
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
        """Alias of `behaviour_logprob`: log-probs under the rollout policy."""
        return self.behaviour_logprob

    @property
    def old_logprob(self) -> Tensor | None:
        """Alias of `proximal_logprob`: log-probs under the old policy."""
        return self.proximal_logprob

    def _tensors(self) -> dict[str, Tensor]:
        shapes = {
            k: getattr(self, k)
            for k in ("logprob", "behaviour_logprob", "reference_logprob", "entropy", "proximal_logprob", "value")
        }
        return {k: v for k, v in shapes.items() if v is not None}

    def index(self, entries: Tensor) -> PolicyTokens:
        """The outputs on a subset of the action tokens."""
        parts: dict[str, Any] = {k: v[entries] for k, v in self._tensors().items()}
        return replace(self, **parts, outputs={k: v[entries] for k, v in self.outputs.items()})


BUILT_IN: Mapping[str, tuple[str, str]] = {  # name -> (axis, what it is)
    "behaviour_logprob": ("P", "log-probs of the sampler; comes with the rollouts"),
    "proximal_logprob": ("P", "log-probs of the policy at the start of the step; the trainer computes them"),
    "reference_logprob": ("P", "log-probs of the frozen reference model; computed where a part needs them"),
    "entropy": ("P", "entropy of the policy's distribution at each token, in nats"),
    "value": ("P", "the value head's estimate of the state in which each token is chosen"),
    "hidden": ("T", "the policy's last hidden state at every stored token, [T, H]"),
}


class Signals(Mapping[str, Any]):
    """Named tensors of a step, read-only; a missing one raises with what it is and which part provides it.

    `old_logprob` and `rollout_logprob` (TRL's and verl's names) are `proximal_logprob` and `behaviour_logprob`.

    axes   name -> "R" | "S" | "T" of the signals that are not on P
    """

    def __init__(self, values: Mapping[str, Any] | None = None, axes: Mapping[str, str] | None = None) -> None:
        self._values = {ALIASES.get(name, name): x for name, x in (values or {}).items()}
        self.axes = dict(axes or {})

    @classmethod
    def of(
        cls, forest: Forest, signals: Mapping[str, Any] | None = None, axes: Mapping[str, str] | None = None
    ) -> Signals:
        """Signals of a step: `signals`, and the sampler's log-probs, also in place of missing proximal log-probs."""
        values = {ALIASES.get(name, name): x for name, x in (signals or {}).items()}
        values.setdefault("behaviour_logprob", forest.path_behaviour_logprob)
        values.setdefault("proximal_logprob", values["behaviour_logprob"])
        return cls(values, {**(signals.axes if isinstance(signals, Signals) else {}), **(axes or {})})

    def __getitem__(self, name: str) -> Any:
        name = ALIASES.get(name, name)
        if name not in self._values:
            description = BUILT_IN.get(name.partition("@")[0], ("", "no part of this method provides it"))[1]
            raise MissingSignal(f"signal {name!r} is missing ({description}): pass it as signals={{{name!r}: ...}}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def axis(self, name: str) -> str:
        """Axis of a signal's leading dimension."""
        return self.axes.get(name, BUILT_IN[name][0] if name in BUILT_IN else "P")

    def select(self, forest: Forest, rows: Tensor) -> Signals:
        """Signals of `forest.select(rows)`; `rows` [R] bool or distinct indices."""
        import torch

        # rows of trajectories select tokens and segments with them, each on its own axis
        places = forest.kept_rows(rows)
        out = {}
        for name, value in self._values.items():
            if isinstance(value, torch.Tensor) and value.dim():
                axis = self.axis(name)
                # a signal of another forest would be indexed without an error and give wrong numbers
                if len(value) != forest._size(axis):
                    raise ValueError(
                        f"signal {name!r} has {len(value)} rows; axis {axis} of this forest has {forest._size(axis)}"
                    )
                value = value[places[axis]]
            out[name] = value
        return Signals(out, self.axes)


def learns_from_equal_groups(part: Any) -> bool:
    """True of a part that may have non-zero advantages, or a gradient, in groups of equal outcomes."""
    return bool(getattr(part, "learns_from_equal_groups", False))


class Credit(Protocol):
    """An advantage estimator: [P] float64, detached. Adds with `+`."""

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor: ...


class Weight(Protocol):
    """A weight of rollouts or tokens: [P], finite, >= 0. Multiplies with `*`."""

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor: ...


class Term(Protocol):
    """A term of the objective: one function of the whole optimiser step, which gives a scalar to minimise and figures
    by metric name, without gradient. (A scalar alone has its figures from `metrics`, a method of the same arguments but
    the last.)

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
    """Result of one optimiser step."""

    empty: bool  # every coefficient was zero: no step was taken
    loss: float = 0.0
    grad_norm: float = 0.0
    tokens_forward: int = 0  # stored tokens that went through the model with gradient
    tokens_flat: int = 0  # what they would have been without sharing
    microbatches: int = 0
    moved_share: float | None = None  # share of the weights that changed, float32 ones by a sample; None: not counted
    nonfinite: str = ""  # the first parameter whose gradient was not finite: no step was taken
    outputs: Mapping[str, Tensor] = field(default_factory=dict)  # detached policy outputs [P], nan where not computed


LossFunction = Callable[[Mapping[str, "Tensor"]], "Tensor"]  # {"logprob": [P], "entropy": [P], ...} -> scalar, float64


class Learner(Protocol):
    """Holds and updates the policy's parameters; knows forests and L(x), never a method."""

    def outputs(
        self,
        forest: Forest,
        names: Sequence[str] = ("logprob",),
        *,
        policy: str = "current",
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Detached float64 [P] outputs ([P, K] of some); `policy` is "current" or "reference". Untrainable entries are
        computed too. `constants`: [P, ...] by name that some outputs are computed with."""
        ...

    def follow(self, policy: Any, rate: float) -> None:
        """Move every parameter by `rate` towards another learner's (exponential moving average)."""
        ...

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        """[T, H] float32: hidden states of the current policy at every stored token, after a layer."""
        ...

    def logits(self, states: Tensor) -> Tensor:
        """[n, V] float32 at least: the current policy's logits of rows [n, H] of its last hidden states."""
        ...

    def second_learner(self, *, lr: float) -> Learner:
        """Create another learner of the same kind from a copy of the parameters, with its own optimiser."""
        ...

    def step(
        self,
        forest: Forest,
        loss: LossFunction,
        *,
        names: Sequence[str] = ("logprob",),
        couples: str = "token",
        active: Tensor | None = None,
        constants: Mapping[str, Tensor] | None = None,
    ) -> StepInfo:
        """One optimiser step on L(x); exact for any micro-batches."""
        ...


@dataclass(frozen=True, eq=False)
class TokenRow:
    """A sequence of tokens for a training engine, and the places in it whose next-token log-probs are asked for.

    tokens       [n] vocabulary ids
    read         [k] places, ascending, each at least 1: the output at i is of p(tokens[i] | tokens[:i])
    temperature  [k] of each of them
    """

    tokens: Tensor
    read: Tensor
    temperature: Tensor


class TrainEngine(Protocol):
    """Training engine: holds the policy's weights, here or elsewhere, under any sharding; knows rows of tokens alone.

    abilities  of "logprob", "entropy" (outputs that it gives and back-propagates), "reference" (a frozen policy),
               "temperature" (readings at temperatures other than 1), "save" (checkpoints)

    Every method is of the whole engine: where several processes hold it, all of its processes take part. See
    `gxpo.conformance.engines` for what an implementation is held to.
    """

    abilities: frozenset[str]

    def forward(
        self, rows: Sequence[TokenRow], names: Sequence[str] = ("logprob",), policy: str = "current"
    ) -> dict[str, list[Tensor]]:
        """Detached outputs [k] of each row, at its places `read`; `policy` is "current" or "reference"."""
        ...

    def pull(self, rows: Sequence[TokenRow], slopes: Mapping[str, Sequence[Tensor]]) -> None:
        """Add the gradient of the sum over rows and places of slope times output: a sum, whatever is padded or cut."""
        ...

    def step(self, lr: float, max_grad_norm: float | None, *, eps: float | None = None) -> float:
        """One AdamW step with the gradient so far, which is then forgotten; gives its global norm before clipping.
        Where that is not finite, nothing is changed. `eps`: of this step, in place of the engine's own (the start-up
        probe's; see `gxpo.learning.remote.probe`)."""
        ...

    def discard(self) -> None:
        """Forget the gradient so far."""
        ...

    def publish(self, version: int, timeout: float) -> None:
        """Give the weights to all samplers, as this version; `GxpoError` if one lacks them after `timeout` seconds."""
        ...

    def save(self, path: Path) -> None:
        """Write weights and optimiser states below the directory `path`."""
        ...

    def load(self, path: Path) -> None:
        """Read what `save` wrote."""
        ...

    def fingerprint(self) -> int:
        """Checksum of the trained weights that does not depend on how they are sharded."""
        ...


@runtime_checkable
class WritesFiles(Protocol):
    """A learner whose checkpoints are files that it writes by itself, in all processes, in the place of tensors."""

    def save(self, path: Path) -> None:
        """Write parameters and moments below `path`."""
        ...

    def load(self, path: Path, meta: Mapping[str, Any]) -> None:
        """Read what `save` wrote, and what the learner's `meta()` gave."""
        ...


@runtime_checkable
class StepRunner(Protocol):
    """The learner as seen by an `Update`: the method's loss and signals already bound."""

    def step(self, forest: Forest, credit: Tensor, weight: Tensor, trajectories: Tensor | None = None) -> StepInfo: ...
    def logprob(self) -> Tensor:
        """[P] detached log-probs of all the step's rollouts under the current policy; one more forward pass."""
        ...

    def renew(self) -> None:
        """Make the current policy the old policy of every later optimiser step: its importance ratio is exactly 1."""
        ...

    def snapshot(self) -> dict[str, Tensor]:
        """Copy the parameters, without the optimiser's moments."""
        ...

    def restore(self, snapshot: Mapping[str, Tensor]) -> None: ...

    # for updates that take steps of their own
    def evaluate(self, forest: Forest, credit: Tensor, weight: Tensor) -> StepInfo:
        """The objective (`loss`) and the outputs of the current policy; one more forward pass, no step."""
        ...

    def gradient(
        self, forest: Forest, credit: Tensor, weight: Tensor, slope: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Gradient by parameter name, without a step: of the objective, or of sum_p slope_p logprob_p."""
        ...

    def record(self, forest: Forest, credit: Tensor, weight: Tensor, info: StepInfo) -> StepInfo:
        """Record an optimiser step that the update took by itself; its figures are of `info.outputs`."""
        ...


class Update(Protocol):
    """Optimiser steps within a training step. Default: epochs x minibatches of whole groups.

    sets_parameters  True for one that reads gradients, or copies and sets parameters (`StepRunner.gradient`,
                     `snapshot`, `restore`), beside taking steps; it may be left out. A training engine that holds the
                     weights elsewhere refuses such an update
    """

    sets_parameters: bool

    def optimiser_steps(self, groups: int) -> int:
        """Optimiser steps in a training step of so many groups, 1 or more: the learning-rate schedule and plans count
        on them before anything is sampled. Where it varies, the most."""
        ...

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]: ...
