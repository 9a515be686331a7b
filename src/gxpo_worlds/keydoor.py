"""KeyDoor: a grid world in which the agent fetches a key, opens a door in a wall and reaches the goal behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gxpo_worlds.grid import MOVES, GridWorld, draw, redraw, shortest, tile_ahead


@dataclass(kw_only=True)
class KeyDoor(GridWorld):
    """KeyDoor: reward 1 at the goal, where the episode succeeds.

    A wall with one locked door cuts the room in two; agent and key are on one side, the goal is on the other. "pickup"
    takes the key from a tile next to the agent (left, right, above or below), "open" unlocks the door on a tile next to
    the agent that carries the key: the door becomes floor and the key is used up. One can't walk onto a key or a door.

    Symbols: `#` wall, `.` floor, `K` key, `D` locked door, `G` goal, `@` agent, `&` agent with the key; `*` agent at
    the goal.

    size  rows and columns, 3 to 10; beyond the edge is wall
    """

    max_turns: int = 40
    size: int = 5

    name: ClassVar[str] = "keydoor"
    actions: ClassVar[tuple[str, ...]] = (*MOVES, "pickup", "open")
    agents: ClassVar[str] = "@&*"
    tiles: ClassVar[str] = "#.KDG"

    def _check(self) -> None:
        self._check_whole("size", 3, 10)

    def _rules(self) -> str:
        return (
            "You are @ in a room. # is wall, a dot is floor, K is a key, D is a locked door, G is the goal. "
            "With the key you are &.\nReach G. You move one tile at a time. pickup takes the key from a tile next to "
            "you; open unlocks the door on a tile next to you if you have the key."
        )

    def _propose(self, random: np.random.Generator) -> str | None:
        # a wall of one column with a door in it; the picture is turned at random at the end
        tiles = np.full((self.size, self.size), ".")
        wall = int(random.integers(1, self.size - 1))
        tiles[:, wall] = "#"
        tiles[random.integers(self.size), wall] = "D"
        sides = [tiles[:, :wall], tiles[:, wall + 1 :]]
        agent_side, goal_side = sides if random.integers(2) else sides[::-1]
        agent, key = random.permutation(agent_side.size)[:2]
        agent_side[divmod(agent, agent_side.shape[1])] = "@"
        agent_side[divmod(key, agent_side.shape[1])] = "K"
        goal_side[divmod(random.integers(goal_side.size), goal_side.shape[1])] = "G"
        picture = draw((tiles.T if random.integers(2) else tiles).ravel(), self.size)
        way = self._solution(picture)
        return picture if way is not None and len(way) <= self.max_turns else None

    def _result(self, state: str, action: str) -> tuple[str, float] | None:
        agent = "&" if "&" in state else "@"
        index = state.index(agent)
        if action == "pickup":
            key = _neighbour(state, index, "K")
            return None if key is None else (redraw(state, {index: "&", key: "."}), 0.0)
        if action == "open":
            door = _neighbour(state, index, "D") if agent == "&" else None
            return None if door is None else (redraw(state, {index: "@", door: "."}), 0.0)
        # a key and a locked door are obstacles: only floor and the goal can be entered
        ahead = tile_ahead(state, index, action)
        if ahead is None or state[ahead] not in ".G":
            return None
        arrived = state[ahead] == "G"
        return redraw(state, {index: ".", ahead: "*" if arrived else agent}), float(arrived)

    def _verdict(self, state: str) -> bool | None:
        return True if "*" in state else None

    def _solution(self, state: str) -> list[str] | None:
        def after(state: str, action: str) -> str | None:
            outcome = self._result(state, action)
            return None if outcome is None else outcome[0]

        return shortest(state, self.actions, after, lambda reached: "*" in reached)


def _neighbour(state: str, index: int, symbol: str) -> int | None:
    """Index of a tile with `symbol` next to the tile at `index`; None if there is none."""
    neighbours = (tile_ahead(state, index, move) for move in MOVES)
    return next((tile for tile in neighbours if tile is not None and state[tile] == symbol), None)
