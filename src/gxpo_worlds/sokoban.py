"""Sokoban: push every box onto a goal. Levels are made here, by playing backwards from the solved position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gxpo.errors import ConfigError
from gxpo_worlds.grid import GridWorld, draw, redraw, tile_ahead
from gxpo_worlds.sokoban_solver import AGENT, Board, Position, read, solve

LEFT_BEHIND = {"@": "-", "+": "."}
STEPPED_ON = {"-": "@", "$": "@", ".": "+", "*": "+"}
BOX_ON = {"-": "$", ".": "*"}


@dataclass(kw_only=True)
class Sokoban(GridWorld):
    """Pays 1 when all boxes are on goals, where the episode succeeds. Positions that can't be won any more go on.

    Symbols: `#` wall, `-` floor, `.` goal, `$` box, `*` box on a goal, `@` agent, `+` agent on a goal. States, and
    observations in style "bare", leave out the wall around the level: beyond the edge is wall.

    size        rows and columns, the wall around the level included, 5 to 8
    boxes       1 to 3
    walls       share of the inside that is wall (rounded to whole tiles)
    min_pushes  pushes in the expert's solution, at least
    max_pushes  and at most
    shaped      pay -0.1 a turn, +1 for a box pushed onto a goal, -1 for one pushed off, +10 for the last one (beside
                its +1), as gym-sokoban does, in place of the 1

    The expert's solution is a shortest one in moves; it has none where a box is lost, or where the search gave up.
    """

    max_turns: int = 20
    size: int = 6
    boxes: int = 1
    walls: float = 0.15
    min_pushes: int = 1
    max_pushes: int = 4
    shaped: bool = False

    name: ClassVar[str] = "sokoban"
    agents: ClassVar[str] = AGENT
    tiles: ClassVar[str] = "#-.$*"

    def _check(self) -> None:
        self._whole("size", 5, 8)
        self._whole("boxes", 1, 3)
        self._share("walls", 0.4)
        self._whole("min_pushes", 1, 20)
        self._whole("max_pushes", self.min_pushes, 40)
        if not isinstance(self.shaped, bool):
            raise ConfigError(f"sokoban: shaped must be true or false, not {self.shaped!r}")

    def _rules(self) -> str:
        return (
            "You are @ (+ on a goal) in a warehouse. # is wall, - is floor, a dot is a goal, $ is a box, "
            "* is a box on a goal.\nPush every box onto a goal. You move one tile at a time. Moving against a box "
            "pushes it one tile, if the tile behind it is free; boxes can't be pulled."
        )

    def _propose(self, random: np.random.Generator) -> str | None:
        inside = self.size - 2
        tiles = np.full(inside**2, "-")
        order = random.permutation(inside**2)
        walls = round(self.walls * inside**2)
        tiles[order[:walls]] = "#"
        tiles[order[walls : walls + self.boxes]] = "*"
        tiles[order[walls + self.boxes]] = "@"
        board, solved = read(draw(tiles, inside))
        if len(board.walks((solved[0], frozenset()))) < len(board.ways):
            return None  # part of the floor is cut off
        agent, boxes = self._backwards(board, solved, random)
        picture = draw(tiles, inside).replace("@", "-").replace("*", ".")
        picture = redraw(picture, {at: BOX_ON[picture[at]] for at in boxes} | {agent: STEPPED_ON[picture[agent]]})
        solution = solve(picture)
        if solution is None or not self.min_pushes <= solution[1] <= self.max_pushes:
            return None
        return picture if len(solution[0]) <= self.max_turns else None

    def _backwards(self, board: Board, position: Position, random: np.random.Generator) -> Position:
        """Undo pushes at random without ever coming back, then put the agent anywhere it can walk to."""
        met = {position[1]}
        for _ in range(int(random.integers(self.min_pushes, 2 * self.max_pushes + 1))):
            before = [earlier for earlier in board.before_push(position) if earlier[1] not in met]
            if not before:
                break
            position = before[int(random.integers(len(before)))]
            met.add(position[1])
        places = sorted(board.walks(position))
        return places[int(random.integers(len(places)))], position[1]

    def _result(self, state: str, action: str) -> tuple[str, float] | None:
        at = next(i for i, tile in enumerate(state) if tile in AGENT)
        there = tile_ahead(state, at, action)
        if there is None or state[there] == "#":
            return None
        tiles = {at: LEFT_BEHIND[state[at]], there: STEPPED_ON[state[there]]}
        if state[there] not in "$*":
            return redraw(state, tiles), 0.0
        beyond = tile_ahead(state, there, action)
        if beyond is None or state[beyond] not in BOX_ON:
            return None
        after = redraw(state, {**tiles, beyond: BOX_ON[state[beyond]]})
        won = bool(self._verdict(after))
        if not self.shaped:
            return after, float(won)
        return after, float(after.count("*") - state.count("*")) + 10.0 * won

    def _turn_reward(self) -> float:
        return -0.1 if self.shaped else 0.0

    def _verdict(self, state: str) -> bool | None:
        return None if "$" in state else True

    def _solution(self, state: str) -> list[str] | None:
        solution = solve(state)
        return None if solution is None else solution[0]

    def _shown(self, state: str) -> str:
        rows = [f"#{row}#" for row in state.split("\n")]
        return "\n".join(["#" * self.size, *rows, "#" * self.size])
