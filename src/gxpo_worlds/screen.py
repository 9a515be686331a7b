"""Base of the visual worlds: a picture and a short text every turn, an action in text."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.environments.envs.actions import action_text
from gxpo.parts.protocols import Message, TimeStep
from gxpo_worlds.grid import NOTES, STYLES

if TYPE_CHECKING:
    from gxpo.base.media import Pixels

Level = TypeVar("Level")
Action = TypeVar("Action")


def picture_message(pixels: Pixels, text: str) -> tuple[Message, ...]:
    """Observation of a picture [H, W, 3] uint8 and a text, as one message of the user's."""
    parts = [{"type": "image", "image": pixels}, {"type": "text", "text": text}]
    return ({"role": "user", "content": parts},)


@dataclass(kw_only=True)
class ScreenWorld(ABC, Generic[Level, Action]):
    """Base of visual worlds. Options (the fields), seed and actions determine everything: the seed makes a level, which
    stays the same, and the state is a text.

    style      "chat": for models that read instructions; an action may have reasoning before it and is asked for as
               `<action>...</action>`; the text says what went wrong.
               "bare": no instructions, an action is the whole answer; the observation is a function of level and state
               alone, `action_error` says what went wrong
    max_turns  actions an episode may have; the last one truncates the episode

    An action is illegal where it cannot change the state. Illegal and malformed actions take a turn. Nothing is paid by
    the turn: the verdict is all.
    """

    style: str = "chat"
    max_turns: int = 3
    instructions: str = field(init=False, repr=False)
    _seed: int = field(init=False, repr=False, default=0)
    _turn: int = field(init=False, repr=False, default=0)
    _state: str = field(init=False, repr=False, default="")
    _level: Level = field(init=False, repr=False, default=None)  # type: ignore[assignment]  # until reset

    name: ClassVar[str]
    first: ClassVar[str]  # state that an episode begins in
    example: ClassVar[str]  # an action, for the instructions

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ConfigError(f"{self.name}: style must be 'chat' or 'bare', not {self.style!r}")
        if type(self.max_turns) is not int or not 1 <= self.max_turns <= 1000:
            raise ConfigError(f"{self.name}: max_turns must be a whole number from 1 to 1000, not {self.max_turns!r}")
        self._check()
        chat = (
            f"{self._rules()}\nEach turn, you may think first; then end your answer with one action, as in "
            f"<action>{self.example}</action>."
        )
        self.instructions = chat if self.style == "chat" else ""

    def _check(self) -> None:  # most worlds have no more options
        """Raise ConfigError for invalid options of this world."""

    @abstractmethod
    def _rules(self) -> str:
        """Instructions: the picture, the aim, and the actions."""

    @abstractmethod
    def _make(self, seed: int) -> Level:
        """Make the level of a seed."""

    @abstractmethod
    def content(self, seed: int) -> str:
        """Level of `seed` as a text that is equal for equal levels; the running episode is not changed."""

    @abstractmethod
    def _read(self, text: str) -> Action | None:
        """Parse the action in a text; None if there is none."""

    @abstractmethod
    def _result(self, state: str, action: Action) -> str | None:
        """Next state; None if the action is illegal."""

    @abstractmethod
    def _verdict(self, state: str) -> bool | None:
        """Verdict on a state: True for success, False for failure, None while the episode goes on."""

    def _notes(self, action: Action | None) -> Mapping[str, Any]:
        """Entries for the turn's `info` about its action, which is None if none could be read."""
        return {}

    @abstractmethod
    def _picture(self, state: str) -> Pixels:
        """Picture of a state, [H, W, 3]."""

    @abstractmethod
    def _question(self, state: str) -> str:
        """Text beside the picture: the question in a few words."""

    @abstractmethod
    def _legal(self, state: str) -> list[str]:
        """Actions that a random policy draws from; each changes the state."""

    @abstractmethod
    def _best(self, state: str) -> str:
        """Action of an expert who knows the level."""

    @abstractmethod
    def _is_state(self, state: str) -> bool:
        """Return True if a text is a state of this level."""

    def reset(self, seed: int) -> TimeStep:
        self._level, self._seed, self._turn, self._state = self._make(seed), seed, 0, self.first
        return self._time_step(None)

    def step(self, action: str) -> TimeStep:
        if not self._state or self._over:
            raise GxpoError(
                f"{self.name}: the episode {'is over' if self._state else 'has not begun'}: call reset(seed)"
            )
        move = self._read(action_text(action))
        # an invalid action changes nothing and still takes a turn
        after = None if move is None else self._result(self._state, move)
        self._turn += 1
        if after is None:
            return self._time_step("malformed" if move is None else "illegal", self._notes(move))
        self._state = after
        return self._time_step(None, self._notes(move))

    def legal(self) -> tuple[str, ...]:
        """Some of the actions that change the state, as `step` takes them; none once the episode is over."""
        return () if not self._state or self._over else tuple(map(self._text, self._legal(self._state)))

    def expert(self) -> str | None:
        """An expert's action, as `step` takes it; None once the episode is over."""
        return None if not self._state or self._over else self._text(self._best(self._state))

    def snapshot(self) -> str:
        """Complete state of the episode, without the options."""
        return json.dumps({"seed": self._seed, "turn": self._turn, "state": self._state})

    def restore(self, text: str) -> None:
        """Continue from a `snapshot`, in an environment with the same options."""
        try:
            fields = json.loads(text)
            seed, turn, state = fields["seed"], fields["turn"], fields["state"]
            is_valid = type(seed) is int and type(turn) is int and min(seed, turn) >= 0 and isinstance(state, str)
        except (ValueError, KeyError, TypeError):
            is_valid, seed, turn, state = False, 0, 0, ""
        level: Any = self._level
        # a state can only be judged against its level; the old one comes back if it does not fit
        if is_valid:
            self._level = self._make(seed)
            is_valid = not state or self._is_state(state)
        if not is_valid:
            self._level = level
            raise GxpoError(f"{self.name}: this is no snapshot of it: {text[:80]!r}")
        self._seed, self._turn, self._state = seed, turn, state

    @property
    def _over(self) -> bool:
        return self._turn >= self.max_turns or self._verdict(self._state) is not None

    def _text(self, action: str) -> str:
        return f"<action>{action}</action>" if self.style == "chat" else action

    def _time_step(self, error: str | None, info: Mapping[str, Any] | None = None) -> TimeStep:
        # a success in the last turn is a success and no truncation
        verdict = self._verdict(self._state)
        truncated = verdict is None and self._turn >= self.max_turns
        note = NOTES[error] if self.style == "chat" else ""
        return TimeStep(
            observation=picture_message(self._picture(self._state), note + self._question(self._state)),
            state=self._state,
            done=truncated or verdict is not None,
            success=False if truncated else verdict,
            action_error=error,
            truncated=truncated,
            info=info or {},
        )
