"""Signal functions of rollouts and the policy, and the classes that make a function a part of `signal.NAME`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gxpo.algorithms.signals.base import SignalPart, SignalTools
from gxpo.base.errors import CheckpointError
from gxpo.parts import named_columns
from gxpo.parts.functions import FunctionPart, signature
from gxpo.parts.ranges import key_of

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals

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
