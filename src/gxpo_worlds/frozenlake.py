"""FrozenLake: cross the ice without entering a hole; generated maps, gymnasium's dynamics."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from gxpo.base.errors import ConfigError, need
from gxpo.parts.protocols import Message
from gxpo_worlds.grid import CHANCE, MOVES, NOTES, GridWorld, draw, shortest, stream, tile_ahead
from gxpo_worlds.grid_picture import picture
from gxpo_worlds.screen import picture_message

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
        # gymnasium needs a start; `step` sets the position before each action, so any tile of ice will do
        rows = ice.replace(".", "@", 1).translate(TO_GYMNASIUM).split("\n")
        env = gymnasium.make("FrozenLake-v1", desc=rows, is_slippery=slippery, disable_env_checker=True)
        self.world: Any = env.unwrapped
        self.world.np_random = stream(CHANCE)  # without slipping its numbers decide nothing
        self._values: list[np.ndarray] = []

    def place(self, picture: str) -> int:
        """Number of the agent's tile in gymnasium, which counts without newlines."""
        index = picture.index("@")
        return index - index // (self.width + 1)

    def changes(self, place: int, action: int) -> bool:
        """Return True if an action may move the agent: on slippery ice also one against the edge."""
        return any(next_place != place for _, next_place, _, _ in self.world.P[place][action])

    def step(self, place: int, action: int, random: np.random.Generator | None) -> tuple[str, float]:
        """Take an action of gymnasium; return the picture after it and its reward. `random` decides where it slips."""
        if random is not None:
            self.world.np_random = random
        self.world.s = place
        next_place, reward, *_ = self.world.step(action)
        index = next_place + next_place // self.width
        return self.ice[:index] + ENTERED[self.ice[index]] + self.ice[index + 1 :], float(reward)

    def values(self, turns: int) -> np.ndarray:
        """Action values [places, actions], by dynamic programming over gymnasium's transition table.

        A value is the probability of reaching the goal within `turns` turns with this action first and optimal ones
        after it, less `HASTE` for each turn.
        """
        if turns < len(self._values):
            return self._values[turns]
        self._values = self._values or [np.zeros((self.width**2, len(MOVES)))]
        table = self.world.P
        outcomes = [
            (place, action, p * reward, p * (1 - HASTE), next_place)
            for place in table
            for action in table[place]
            for p, next_place, reward, _ in table[place][action]  # holes and goal lead to themselves and pay nothing
        ]
        place, action, reward_share, discount, next_place = (np.array(column) for column in zip(*outcomes, strict=True))
        # Q_n(s, a) = sum over outcomes of p (r + (1 - HASTE) max_b Q_(n-1)(s', b))
        while len(self._values) <= turns:
            later = self._values[-1].max(axis=1)
            values = np.zeros_like(self._values[-1])
            np.add.at(values, (place, action), reward_share + discount * later[next_place])
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
        self._check_whole("size", 3, 8)
        self._check_share("holes", 0.5)
        self._check_whole("distance", 1, 40)
        for option, value in (("slippery", self.slippery), ("pixels", self.pixels)):
            if not isinstance(value, bool):
                raise ConfigError(f"frozenlake: {option} must be true or false, not {value!r}")

    def _rules(self) -> str:
        slippery = (
            "\nThe ice is slippery: you go where you mean to once in three times, else to one of the two sides of it."
        )
        scene = "You are @ on a frozen lake. A dot is ice, O is a hole, G is the goal.\nReach G"
        if self.pixels:
            scene = (
                "You are the red square on a frozen lake. Pale blue is ice, dark blue is a hole, green is the goal.\n"
                "Reach the goal"
            )
        rules = " without entering a hole. You move one tile at a time and can't leave the lake."
        return scene + rules + (slippery if self.slippery else "")

    def _propose(self, random: np.random.Generator) -> str | None:
        tiles = np.full(self.size**2, ".")
        # one permutation places agent, goal and holes on different tiles
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
        """Difficulty of an instance: the number of moves of a shortest way from start to goal."""
        return len(self._solution(self.content(seed)) or ())

    def _solution(self, state: str) -> list[str] | None:
        return shortest(state, MOVES, _walk, lambda reached: "*" in reached)

    def _best(self, state: str) -> str | None:
        if not self.slippery:
            return super()._best(state)
        # with few turns left a risky way may be the likelier one: the values depend on the turns
        lake = self._lake_of(state)
        value = lake.values(self.max_turns - self._turn)[lake.place(state)]
        if not value.any():  # too late; the way to the goal all the same
            value = lake.values(self.max_turns + self.size**2)[lake.place(state)]
        return MOVES[int(value.argmax())] if value.any() else None

    def _observation(self, error: str | None) -> str | tuple[Message, ...]:
        if not self.pixels:
            return super()._observation(error)
        image = picture(self._state, COLOURS, {symbol: tile for tile, symbol in ENTERED.items()}, AGENT)
        return picture_message(image, ">" if self.style == "bare" else f"{NOTES[error]}Which way?")

    def _lake_of(self, state: str) -> Lake:
        ice = state.replace("@", ".")
        if self._lake is None or self._lake.ice != ice:
            self._lake = _lake(ice, self.slippery)
        return self._lake


@lru_cache(maxsize=64)
def _lake(ice: str, slippery: bool) -> Lake:
    """Lake of a map, shared by the episodes of a group: it holds no state of them."""
    return Lake(ice, slippery)


def _walk(state: str, action: str) -> str | None:
    """Picture after a move without slipping; None at the edge and into a hole."""
    index = state.index("@")
    next_tile = tile_ahead(state, index, action)
    if next_tile is None or state[next_tile] == "O":
        return None
    tiles = list(state)
    tiles[index], tiles[next_tile] = ".", ENTERED[state[next_tile]]
    return "".join(tiles)
