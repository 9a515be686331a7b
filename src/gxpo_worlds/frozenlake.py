"""FrozenLake: cross the ice without entering a hole. Maps are generated here, the dynamics are gymnasium's."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from gxpo.base.errors import ConfigError, need
from gxpo.parts.protocols import Message
from gxpo_worlds.grid import CHANCE, MOVES, NOTES, GridWorld, draw, shortest, stream, tile_ahead
from gxpo_worlds.grid_picture import picture
from gxpo_worlds.screen import shown

HASTE = 1e-6  # share of a success that the expert gives up per turn: never worth a risk, but it does not linger
TO_GYMNASIUM = str.maketrans("@.OG", "SFHG")
ENTERED = {".": "@", "O": "X", "G": "*"}  # tile -> how it looks with the agent on it
COLOURS = {".": (205, 225, 240), "O": (25, 35, 90), "G": (40, 180, 70)}
AGENT = (225, 45, 45)


class Lake:
    """gymnasium's FrozenLake on one map, as a function of the agent's position.

    ice   the picture without the agent
    """

    def __init__(self, ice: str, slippery: bool) -> None:
        gymnasium: Any = need("gymnasium", "envs")
        self.ice = ice
        self.width = ice.index("\n")
        # gymnasium wants a start; each step is told where it begins, so any tile of ice will do
        rows = ice.replace(".", "@", 1).translate(TO_GYMNASIUM).split("\n")
        made = gymnasium.make("FrozenLake-v1", desc=rows, is_slippery=slippery, disable_env_checker=True)
        self.world: Any = made.unwrapped
        self.world.np_random = stream(CHANCE)  # without slipping its numbers decide nothing
        self._values: list[np.ndarray] = []

    def place(self, picture: str) -> int:
        """gymnasium's number of the agent's tile."""
        at = picture.index("@")
        return at - at // (self.width + 1)

    def changes(self, place: int, action: int) -> bool:
        return any(there != place for _, there, _, _ in self.world.P[place][action])

    def step(self, place: int, action: int, random: np.random.Generator | None) -> tuple[str, float]:
        """The picture after an action of gymnasium, and its reward. `random` decides where the agent slips."""
        if random is not None:
            self.world.np_random = random
        self.world.s = place
        there, reward, *_ = self.world.step(action)
        at = there + there // self.width
        return self.ice[:at] + ENTERED[self.ice[at]] + self.ice[at + 1 :], float(reward)

    def values(self, turns: int) -> np.ndarray:
        """[places, actions] action values: probability of reaching the goal within `turns` turns with this action first
        and optimal ones after it; less `HASTE` for each turn. By dynamic programming over gymnasium's transition table.
        """
        if turns < len(self._values):
            return self._values[turns]
        self._values = self._values or [np.zeros((self.width**2, len(MOVES)))]
        table = self.world.P
        outcomes = [
            (place, action, p * reward, p * (1 - HASTE), there)
            for place in table
            for action in table[place]
            for p, there, reward, _ in table[place][action]  # holes and goal lead to themselves and pay nothing
        ]
        place, action, paid, goes_on, there = (np.array(column) for column in zip(*outcomes, strict=True))
        while len(self._values) <= turns:
            later = self._values[-1].max(axis=1)
            values = np.zeros_like(self._values[-1])
            np.add.at(values, (place, action), paid + goes_on * later[there])
            self._values.append(values.round(12))  # equally good actions must tie exactly
        return self._values[turns]


@dataclass(kw_only=True)
class FrozenLake(GridWorld):
    """FrozenLake: reward 1 at the goal, where the episode succeeds; a hole ends it.

    Symbols: `@` agent, `.` ice, `O` hole, `G` goal; at the end `X` agent in a hole, `*` agent at the goal.

    size      rows and columns, 3 to 8
    holes     share of the tiles other than start and goal that are holes (rounded to whole tiles)
    distance  least number of moves from start to goal, which are placed at random
    slippery  gymnasium's slippery ice: with probability 1/3 each, the agent goes where it meant to or to one of the two
              sides of that. Where it slips is decided by (seed, turn). Such a lake can't always be crossed in time
    pixels    show a picture of 64 x 64 pixels and a short text; states, actions and tasks are those of the text world

    Moving against the edge is illegal, except on slippery ice, where it may move the agent sideways. There the
    expert makes the goal as likely as possible within the turns left, then as soon as possible; on other ice it takes a
    shortest way.
    """

    max_turns: int = 12
    size: int = 4
    holes: float = 0.2
    distance: int = 2
    slippery: bool = False
    pixels: bool = False
    _lake: Lake | None = field(init=False, repr=False, default=None)

    name: ClassVar[str] = "frozenlake"
    agents: ClassVar[str] = "@X*"
    tiles: ClassVar[str] = ".OG"

    def _check(self) -> None:
        self._whole("size", 3, 8)
        self._share("holes", 0.5)
        self._whole("distance", 1, 40)
        for option, value in (("slippery", self.slippery), ("pixels", self.pixels)):
            if not isinstance(value, bool):
                raise ConfigError(f"frozenlake: {option} must be true or false, not {value!r}")

    def _rules(self) -> str:
        slippery = (
            "\nThe ice is slippery: you go where you mean to once in three times, else to one of the two sides of it."
        )
        seen = "You are @ on a frozen lake. A dot is ice, O is a hole, G is the goal.\nReach G"
        if self.pixels:
            seen = (
                "You are the red square on a frozen lake. Pale blue is ice, dark blue is a hole, green is the goal.\n"
                "Reach the goal"
            )
        rules = " without entering a hole. You move one tile at a time and can't leave the lake."
        return seen + rules + (slippery if self.slippery else "")

    def _propose(self, random: np.random.Generator) -> str | None:
        tiles = np.full(self.size**2, ".")
        order = random.permutation(self.size**2)
        tiles[order[0]], tiles[order[1]] = "@", "G"
        tiles[order[2 : 2 + round(self.holes * (self.size**2 - 2))]] = "O"
        picture = draw(tiles, self.size)
        way = self._solution(picture)
        return picture if way is not None and self.distance <= len(way) <= self.max_turns else None

    def _result(self, state: str, action: str) -> tuple[str, float] | None:
        lake, number = self._lake_of(state), MOVES.index(action)
        place = lake.place(state)
        if not lake.changes(place, number):
            return None
        return lake.step(place, number, stream(CHANCE, self._turn, self._seed) if self.slippery else None)

    def _verdict(self, state: str) -> bool | None:
        return True if "*" in state else False if "X" in state else None

    def level(self, seed: int) -> int:
        """Number of moves of a shortest way from start to goal."""
        return len(self._solution(self.content(seed)) or ())

    def _solution(self, state: str) -> list[str] | None:
        return shortest(state, MOVES, _walk, lambda reached: "*" in reached)

    def _best(self, state: str) -> str | None:
        if not self.slippery:
            return super()._best(state)
        lake = self._lake_of(state)
        value = lake.values(self.max_turns - self._turn)[lake.place(state)]
        if not value.any():  # too late; the way to the goal all the same
            value = lake.values(self.max_turns + self.size**2)[lake.place(state)]
        return MOVES[int(value.argmax())] if value.any() else None

    def _observation(self, error: str | None) -> str | tuple[Message, ...]:
        if not self.pixels:
            return super()._observation(error)
        seen = picture(self._state, COLOURS, {there: tile for tile, there in ENTERED.items()}, AGENT)
        return shown(seen, ">" if self.style == "bare" else f"{NOTES[error]}Which way?")

    def _lake_of(self, state: str) -> Lake:
        ice = state.replace("@", ".")
        if self._lake is None or self._lake.ice != ice:
            self._lake = _lake(ice, self.slippery)
        return self._lake


@lru_cache(maxsize=64)
def _lake(ice: str, slippery: bool) -> Lake:
    """Shared by the episodes of a group: a lake remembers nothing of them."""
    return Lake(ice, slippery)


def _walk(state: str, action: str) -> str | None:
    """The picture after a safe move without slipping."""
    at = state.index("@")
    there = tile_ahead(state, at, action)
    if there is None or state[there] == "O":
        return None
    tiles = list(state)
    tiles[at], tiles[there] = ".", ENTERED[state[there]]
    return "".join(tiles)
