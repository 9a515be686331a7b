"""Base class of signals: quantities computed once per step, with state for checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import GxpoError
from gxpo.parts.functions import expect, in_words, naming, place_of, users_code
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
    asked     token ids of a task, by its id, under a template: {prompt} is its text, of a chat the user's last message,
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
    asked: Callable[[str, str, Mapping[str, str]], Sequence[int] | None] = _not_lent
    external: Callable[[str], Any] = _not_lent
    picture_grid: Callable[[str], tuple[int, int]] | None = None


class SignalPart(Part, ABC):
    """Base class of signals: a frozen dataclass that computes named tensors for other parts, once per step.

    provides  names of its signals; `axes` names the axis ("R", "S", "T") of those that are not on P
    needs     other signals that it reads
    external  names of the frozen models of the section `teacher` that it reads

    A part that trains a model of its own makes it in `bind`, moves it in `learn`, after the policy's update, and owns
    its parameters and its optimiser: they are what `tensors` and `state_dict` give to the checkpoint.
    """

    slot = "signal.NAME"
    provides: tuple[str, ...] = ()
    axes: Mapping[str, str] = {}
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    external: tuple[str, ...] = ()

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
