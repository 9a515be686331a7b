"""Base of the grid worlds: text in, text out, over a state that is a picture of characters.

A state is a text: rows of one character per tile, separated by newlines. All that can still happen depends on it and,
where a world has chance in it, on (seed, turn).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.environments.envs.actions import find_action
from gxpo.parts.protocols import Message, TimeStep

MOVES = ("left", "down", "right", "up")  # in the order of gymnasium's toy-text worlds
STYLES = ("chat", "bare")
LEVEL, CHANCE = 1, 2  # first word of a stream's key
NOTES = {  # in chat style, before the picture, for an invalid action
    None: "",
    "malformed": "No action could be read. Nothing changed.\n",
    "illegal": "That is not possible here. Nothing changed.\n",
}
TRIES = 2000  # proposals for one instance after which the options count as impossible


def stream(*key: int) -> np.random.Generator:
    """Random generator that depends on nothing but `key` (non-negative integers)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def tile_ahead(picture: str, index: int, move: str) -> int | None:
    """Index of the tile in the direction `move` of `index`; None beyond the edge.

    >>> [tile_ahead("@.\\n..", 0, move) for move in MOVES]
    [None, 3, 1, None]
    """
    row = picture.index("\n") + 1
    ahead = index + (-1, row, 1, -row)[MOVES.index(move)]
    return ahead if 0 <= ahead < len(picture) and picture[ahead] != "\n" else None


def redraw(picture: str, tiles: Mapping[int, str]) -> str:
    """Copy of the picture with other symbols at these indices."""
    symbols = list(picture)
    for index, symbol in tiles.items():
        symbols[index] = symbol
    return "".join(symbols)


def draw(tiles: Iterable[str], width: int) -> str:
    """Join tiles in reading order to a picture with rows of `width`."""
    symbols = "".join(tiles)
    return "\n".join(symbols[index : index + width] for index in range(0, len(symbols), width))


def shortest(
    start: str, actions: Iterable[str], result: Callable[[str, str], str | None], end: Callable[[str], bool]
) -> list[str] | None:
    """Shortest list of actions from `start` to a state where `end` holds, by breadth-first search; None without one.

    result  (state, action) -> the next state, or None where the action is not possible
    """
    # the first way to reach a state is a shortest one, so the states reached are never overwritten
    came_from: dict[str, tuple[str, str] | None] = {start: None}
    frontier = [start]
    while frontier:
        reached = []
        for state in frontier:
            if end(state):
                return _way_to(state, came_from)
            for action in actions:
                after = result(state, action)
                if after is not None and after not in came_from:
                    came_from[after] = (state, action)
                    reached.append(after)
        frontier = reached
    return None


def _way_to(state: str, came_from: Mapping[str, tuple[str, str] | None]) -> list[str]:
    """Actions that led to a state, from the start."""
    way = []
    while (step := came_from[state]) is not None:
        state, action = step
        way.append(action)
    return way[::-1]


@dataclass(kw_only=True)
class GridWorld(ABC):
    """Base of grid worlds; the state is a picture. Options (the fields), seed and actions determine everything.

    style      "chat": for models that read instructions; a tile is a word of its own, an action is asked for as
               `<action>NAME</action>` and may have reasoning before it; the observation says what went wrong.
               "bare": for models of single characters; no instructions, an action is the first letter of its name as a
               capital; the observation is a function of the state alone, `action_error` says what went wrong
    max_turns  actions an episode may have; every instance can be solved in that many (without slipping); the last one
               truncates the episode

    An action is illegal where it cannot change the state. Illegal and malformed actions take a turn.
    """

    style: str = "chat"
    max_turns: int = 50
    instructions: str = field(init=False, repr=False)
    _seed: int = field(init=False, repr=False, default=0)
    _turn: int = field(init=False, repr=False, default=0)
    _state: str = field(init=False, repr=False, default="")
    _route: dict[str, str] = field(init=False, repr=False, default_factory=dict)

    name: ClassVar[str]
    actions: ClassVar[tuple[str, ...]] = MOVES
    agents: ClassVar[str]  # symbols that show where the agent is; a picture has one of them
    tiles: ClassVar[str]  # all other symbols

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ConfigError(f"{self.name}: style must be 'chat' or 'bare', not {self.style!r}")
        self._check_whole("max_turns", 1, 1000)
        self._check()
        chat = (
            f"{self._rules()}\nYour actions: {', '.join(self.actions)}. Each turn, you may think first; then end your "
            f"answer with one action, as in {self._text(self.actions[0])}."
        )
        self.instructions = chat if self.style == "chat" else ""

    @abstractmethod
    def _check(self) -> None:
        """Raise ConfigError for invalid options of this world."""

    @abstractmethod
    def _rules(self) -> str:
        """Rules in words: symbols, aim, illegal moves."""

    @abstractmethod
    def _propose(self, random: np.random.Generator) -> str | None:
        """Draw a first state; None if it does not fit the options."""

    @abstractmethod
    def _result(self, state: str, action: str) -> tuple[str, float] | None:
        """Next state and reward; None if the action is illegal."""

    @abstractmethod
    def _verdict(self, state: str) -> bool | None:
        """Verdict on a state: True for success, False for failure, None while the episode goes on."""

    @abstractmethod
    def _solution(self, state: str) -> list[str] | None:
        """Shortest list of actions that solves the episode from a state; None without one."""

    def _turn_reward(self) -> float:
        """Reward of every turn, for any action."""
        return 0.0

    def reset(self, seed: int) -> TimeStep:
        self._state, self._seed, self._turn = self.content(seed), seed, 0
        return self._time_step(None, None)

    def step(self, action: str) -> TimeStep:
        if not self._state or self._over:
            raise GxpoError(
                f"{self.name}: the episode {'is over' if self._state else 'has not begun'}: call reset(seed)"
            )
        move = find_action(action, self.actions)
        # an invalid action changes nothing and still takes a turn
        outcome = None if move is None else self._result(self._state, move)
        self._turn += 1
        if outcome is None:
            return self._time_step(self._turn_reward(), "malformed" if move is None else "illegal")
        self._state, reward = outcome
        return self._time_step(self._turn_reward() + reward, None)

    def content(self, seed: int) -> str:
        """Initial state of `seed`, a text that is equal for equal instances; the running episode is not changed."""
        # proposals of one stream, until one fits: equal options give the same instance in every process
        random = stream(LEVEL, seed)
        for _ in range(TRIES):
            state = self._propose(random)
            if state is not None:
                return state
        raise ConfigError(f"{self.name}: found no instance with these options ({self!r}): make it easier or larger")

    def legal(self) -> tuple[str, ...]:
        """Actions that may change the state, as `step` takes them; none once the episode is over."""
        if not self._state or self._over:
            return ()
        return tuple(self._text(a) for a in self.actions if self._result(self._state, a) is not None)

    def expert(self) -> str | None:
        """Optimal action, as `step` takes it; None once the episode is over or can't be won any more."""
        best = None if not self._state or self._over else self._best(self._state)
        return None if best is None else self._text(best)

    def snapshot(self) -> str:
        """Complete state of the episode, without the options."""
        return json.dumps({"seed": self._seed, "turn": self._turn, "state": self._state})

    def restore(self, text: str) -> None:
        """Continue from a `snapshot`, in an environment with the same options."""
        self._seed, self._turn, self._state = self._read(text)

    def _best(self, state: str) -> str | None:
        """First action of a solution, which is cached for the states on its way."""
        if state not in self._route:
            self._route, route_state = {}, state
            for action in self._solution(state) or ():
                self._route[route_state] = action
                route_state, _ = self._result(route_state, action) or (route_state, 0.0)
        return self._route.get(state)

    @property
    def _over(self) -> bool:
        return self._turn >= self.max_turns or self._verdict(self._state) is not None

    def _text(self, action: str) -> str:
        return f"<action>{action}</action>" if self.style == "chat" else action[0].upper()

    def _time_step(self, reward: float | None, error: str | None) -> TimeStep:
        # a success in the last turn is a success and no truncation
        verdict = self._verdict(self._state)
        truncated = verdict is None and self._turn >= self.max_turns
        return TimeStep(
            observation=self._observation(error),
            state=self._state,
            reward=reward,
            done=truncated or verdict is not None,
            success=False if truncated else verdict,
            action_error=error,
            truncated=truncated,
        )

    def _observation(self, error: str | None) -> str | tuple[Message, ...]:
        # a function of the state alone: what went wrong is in `action_error`
        if self.style == "bare":
            return f"{self._state}\n>"
        return NOTES[error] + "\n".join(" ".join(row) for row in self._drawing(self._state).split("\n"))

    def _drawing(self, state: str) -> str:
        """Picture of a state as the chat style shows it."""
        return state

    def _check_whole(self, option: str, low: int, high: int) -> None:
        """Raise ConfigError for an option that is not a whole number from low to high."""
        value = getattr(self, option)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(f"{self.name}: {option} must be a whole number from {low} to {high}, not {value!r}")

    def _check_share(self, option: str, high: float) -> None:
        """Raise ConfigError for an option that is not a number from 0 to high."""
        value = getattr(self, option)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
            raise ConfigError(f"{self.name}: {option} must be a number from 0 to {high}, not {value!r}")

    def _read(self, text: str) -> tuple[int, int, str]:
        """Parse a snapshot as (seed, turn, state); GxpoError for anything else."""
        # a state that no episode reaches may pass, but none on which another method fails
        try:
            fields = json.loads(text)
            seed, turn, state = fields["seed"], fields["turn"], fields["state"]
            rows = state.split("\n")
            is_valid = type(seed) is int and type(turn) is int and min(seed, turn) >= 0
            is_valid &= not state or len({len(row) for row in rows}) == 1 < len(rows)
            is_valid &= not state or sum(state.count(symbol) for symbol in self.agents) == 1
            is_valid &= set(state) <= {*self.agents, *self.tiles, "\n"}
        except (ValueError, KeyError, TypeError, AttributeError):
            is_valid = False
        if not is_valid:
            raise GxpoError(f"{self.name}: this is no snapshot of it: {text[:80]!r}")
        return seed, turn, state
