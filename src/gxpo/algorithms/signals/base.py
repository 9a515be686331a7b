"""Base class of signals: quantities computed once per step, with state for checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gxpo.base.errors import CheckpointError, GxpoError
from gxpo.parts import named_columns
from gxpo.parts.functions import FunctionPart, expect, in_words, naming, place_of, signature, users_code
from gxpo.parts.ranges import Part, key_of

if TYPE_CHECKING:
    from torch import Tensor

    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Learner, Signals


def _not_lent(*_: Any) -> Any:
    raise GxpoError("it turns text into token ids, or reads the tasks or their answers, which are not lent to it here")


@dataclass(frozen=True)
class SignalTools:
    """The run's tools for signals: the policy, the tokenizer, answers.

    learner   the policy: `outputs`, `hidden`, and `second_learner` for a second model
    decode    token ids -> text
    blank_id  a neutral token, in place of a masked one
    encode    text -> token ids, as it stands, without a template; the names of special tokens stay text
    answers   the reference answer to each trajectory's task as a text; None where there is none
    reword    token ids of a task, by its id, under a template: {prompt} is its text, of a chat the user's last message,
              other names are filled in from the mapping; None where the task's prompt can't be rewritten
    external  a frozen learner: the model of that name of the section `teacher`, lent in `bind`
    picture_grid  rows and columns of the features that the policy makes of a picture, by its reference; None where it
              reads texts alone
    """

    learner: Learner
    decode: Callable[[Sequence[int]], str]
    blank_id: int
    step: int = 0
    seed: int = 0
    encode: Callable[[str], Sequence[int]] = _not_lent
    answers: Callable[[Forest], Sequence[str | None]] = _not_lent
    reword: Callable[[str, str, Mapping[str, str]], Sequence[int] | None] = _not_lent
    external: Callable[[str], Any] = _not_lent
    picture_grid: Callable[[str], tuple[int, int]] | None = None


class SignalPart(Part, ABC):
    """Base class of signals: a frozen dataclass that computes named tensors for other parts, once per step.

    provides  names of its signals; `axes` names the axis ("R", "S", "T") of those that are not on P
    needs     other signals that it reads
    external  names of the frozen models of the section `teacher` that it reads
    likeliest ids of each token's distribution that the sampler must record for it

    A part that trains a model of its own makes it in `bind`, moves it in `learn`, after the policy's update, and owns
    its parameters and its optimiser: they are what `tensors` and `state_dict` give to the checkpoint.
    """

    slot = "signal.NAME"
    provides: tuple[str, ...] = ()
    axes: Mapping[str, str] = {}
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    likeliest: int = 0

    def bind(self, tools: SignalTools) -> None:  # most parts have nothing to do here
        """Set up with the run's tools; called once, before the first step and before a checkpoint is loaded."""

    @abstractmethod
    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        """Compute detached tensors by name, with the policy at the start of the step."""
        raise NotImplementedError

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        """Train the part's own model on the step's scored rollouts; returns figures for metrics.jsonl."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """State for checkpoints, as JSON."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`; called after `load_tensors`."""

    def tensors(self) -> dict[str, Tensor]:
        """State for checkpoints, as tensors; the names may change from step to step."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore `tensors`."""


def compute_signals(part: SignalPart, forest: Forest, signals: Signals, tools: SignalTools) -> Mapping[str, Tensor]:
    """Compute the signals of a part, each checked to be on its axis; errors name the file of a user's part."""
    label = f"signal {', '.join(part.provides)}"
    with naming(label, part):
        columns = part.compute(forest, signals, tools)
    if not isinstance(columns, Mapping):
        raise GxpoError(
            f"{label}{place_of(part)} gave {in_words(columns)}; it has to give a mapping of names to tensors"
        )
    # A part of gxpo is tested; a user's may have a wrong length, which would only show as a broken index later.
    if users_code(part) is not None:
        for name, value in columns.items():
            axis = part.axes.get(name, "P")
            size = forest._size(axis)
            if not hasattr(value, "is_complex") or value.is_complex() or not value.dim() or len(value) != size:
                expect(value, (size,), f"signal {name}", part, f"row of axis {axis}")
    return columns


@dataclass(frozen=True)
class OwnModel(SignalPart):
    """Base class of signals from a second model, which begins as a copy of the policy when the part is bound."""

    memory: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def bind(self, tools: SignalTools) -> None:
        # A part without an `lr` follows the policy and trains nothing itself.
        self.memory["model"] = tools.learner.second_learner(lr=getattr(self, "lr", 0.0))

    @property
    def model(self) -> Any:
        """The part's own model, a learner."""
        if "model" not in self.memory:
            raise GxpoError(f"{key_of(type(self))} has no model yet: bind the part to the run's learner first")
        return self.memory["model"]


TOOLS = tuple(f.name for f in fields(SignalTools))


class Computed(FunctionPart, SignalPart):
    """Signal computed by a function of rollouts and the policy, whose parameters are by name

    forest  the rollouts
    hidden  [T, H] float32 hidden states of the policy at the start of the step, after the function's option `layer`,
            by default the last
    past    state that the function returned in the step before, by name; {} in the first. Such a function returns the
            signal, its new state, and figures for metrics.jsonl; `remembers` names all that the state may hold
    NAME    a field of `SignalTools` (learner, decode, step, ...), or another signal, on its own axis

    gives   name of the signal -> its axis ("P", "R", "S", "T")
    """

    gives: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def facts(cls, function: Callable[..., Any]) -> dict[str, Any]:
        built_in = ("forest", "hidden", "past", *TOOLS, *named_columns.HELD)
        return {"needs": tuple(name for name in signature(function).columns if name not in built_in)}

    @classmethod
    def bases(cls, function: Callable[..., Any]) -> tuple[type, ...]:
        return (Remembering if "past" in signature(function).columns else cls,)

    @property
    def provides(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.gives)

    @property
    def axes(self) -> Mapping[str, str]:  # type: ignore[override]
        return {name: axis for name, axis in self.gives.items() if axis != "P"}

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        return {self.provides[0]: self.call(forest, signals, tools)}

    @torch.no_grad()
    def call(self, forest: Forest, signals: Signals, tools: SignalTools, **provided: Any) -> Any:
        """Call the function with its arguments by name; `provided` ones go before tools and signals."""

        def argument(name: str) -> Any:
            if name == "hidden":
                return tools.learner.hidden(forest, layer=self.options.get("layer", -1))
            return getattr(tools, name) if name in TOOLS else signals[name]

        provided["forest"] = forest
        names = signature(self.function).columns
        return self.function(
            *(provided[name] if name in provided else argument(name) for name in names), **self.options
        )


@dataclass(frozen=True)
class Remembering(Computed):
    """A `Computed` signal with a past: the state that its function returns is stored after the step's update."""

    remembers: ClassVar[tuple[str, ...]] = ()
    memory: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    latest: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        value, state, figures = self.call(forest, signals, tools, past=dict(self.memory))
        self.latest.update(after=state, figures=figures)
        return {self.provides[0]: value}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        # State moves with the update, so that a step computed twice has the same signal.
        self.memory.update(self.latest["after"])
        return self.latest["figures"]

    def state_dict(self) -> dict[str, Any]:
        return {name: x for name, x in self.memory.items() if not isinstance(x, Tensor)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # A checkpoint of another version of the function must not be mixed with this one's state.
        if not set(state) <= set(self.remembers):
            signal_name = key_of(type(self)).partition(".")[2]
            raise CheckpointError(f"the checkpoint's signal {signal_name} holds {sorted(state)}, not {self.remembers}")
        self.memory.update(state)

    def tensors(self) -> dict[str, Tensor]:
        return {name: x for name, x in self.memory.items() if isinstance(x, Tensor)}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.memory.clear()
        self.memory.update(tensors)
