"""Sokoban solver: shortest solutions in moves, by A* over pushes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from gxpo_worlds.grid import MOVES, tile_ahead

AGENT, BOX, GOAL = "@+", "$*", ".*+"
BACK = {"left": "right", "right": "left", "up": "down", "down": "up"}
POSITIONS = 20_000  # largest number of positions in a search before it gives up

Boxes = frozenset[int]
Position = tuple[int, Boxes]  # where the agent and the boxes are; a tile is its index in the picture
CameBy = tuple[Position, int, str]  # the position before a push, the tile it was pushed from, its direction


@dataclass(frozen=True)
class Board:
    """Static part of a level: floor, goals, and distances of boxes to goals.

    ways    floor tile -> {move: the floor tile it leads to}
    goals   the goals
    pushes  floor tile -> least pushes that bring a lone box from there to a goal; tiles where it is lost are missing
    """

    ways: dict[int, dict[str, int]]
    goals: Boxes
    pushes: dict[int, int]

    def walks(self, position: Position) -> dict[int, tuple[int, int, str]]:
        """Tiles that the agent can walk to -> (number of moves, the tile before, the last move); nearest first."""
        agent, boxes = position
        reached = {agent: (0, agent, "")}
        queue = [agent]
        for tile in queue:
            for move, ahead in self.ways[tile].items():
                if ahead not in reached and ahead not in boxes:
                    reached[ahead] = (reached[tile][0] + 1, tile, move)
                    queue.append(ahead)
        return reached

    def after_push(self, position: Position) -> Iterator[tuple[Position, int, int, str]]:
        """(position, moves it takes, tile pushed from, direction) for every push without a deadlocked box."""
        _, boxes = position
        walks = self.walks(position)
        for box in sorted(boxes):
            for move, ahead in self.ways[box].items():
                stand = self.ways[box].get(BACK[move])
                if stand in walks and ahead not in boxes and ahead in self.pushes:
                    yield (box, boxes - {box} | {ahead}), walks[stand][0] + 1, stand, move

    def before_push(self, position: Position) -> list[Position]:
        """Positions from which one push leads to this one, wherever the agent has walked since."""
        _, boxes = position
        walks = self.walks(position)
        positions = []
        for box in sorted(boxes):
            for before, stand in self.origins(box):
                if before in walks and stand not in boxes:
                    positions.append((stand, boxes - {box} | {before}))
        return positions

    def origins(self, box: int) -> Iterator[tuple[int, int]]:
        """(box, agent) tiles before each push that could have brought a box to `box`."""
        for move in MOVES:
            before = self.ways[box].get(BACK[move])
            stand = None if before is None else self.ways[before].get(BACK[move])
            if before is not None and stand is not None:
                yield before, stand


def read(picture: str) -> tuple[Board, Position]:
    """Parse a picture into board and position."""
    floor = [index for index, tile in enumerate(picture) if tile not in "#\n"]
    ways = {
        index: {m: ahead for m in MOVES if (ahead := _floor_ahead(picture, index, m)) is not None} for index in floor
    }
    board = Board(ways, frozenset(index for index in floor if picture[index] in GOAL), {})
    # backwards from the goals by breadth-first search, one box alone on the board
    board.pushes.update(dict.fromkeys(board.goals, 0))
    queue = sorted(board.goals)
    for box in queue:
        for before, _ in board.origins(box):
            if before not in board.pushes:
                board.pushes[before] = board.pushes[box] + 1
                queue.append(before)
    agent = next(index for index in floor if picture[index] in AGENT)
    return board, (agent, frozenset(index for index in floor if picture[index] in BOX))


def _floor_ahead(picture: str, index: int, move: str) -> int | None:
    """Index of the floor tile in a direction; None at a wall or the edge."""
    ahead = tile_ahead(picture, index, move)
    return None if ahead is None or picture[ahead] == "#" else ahead


def solve(picture: str) -> tuple[list[str], int] | None:
    """Moves of a shortest solution, and the number of its pushes; None if the search finds none.

    A* over positions right after a push; the estimate is the sum of the boxes' `pushes`. It never exceeds the true
    number of moves and falls by at most 1 with a push, so the first solution found is a shortest one. A search ends
    without result where there is no solution, or after `POSITIONS` positions.
    """
    board, start = read(picture)
    # a box on a tile from which no push leads to a goal is lost, whatever the others do
    if not start[1] <= board.pushes.keys():
        return None
    order = count()
    queue: list[tuple[int, int, int, Position, CameBy | None]] = [(0, next(order), 0, start, None)]
    pushed: dict[Position, CameBy | None] = {}
    while queue and len(pushed) < POSITIONS:
        _, _, moves, position, came_by = heapq.heappop(queue)
        # a position may be queued several times; the first one off the heap is the cheapest
        if position in pushed:
            continue
        pushed[position] = came_by
        if position[1] == board.goals:
            return _moves_to(position, pushed, board)
        for after, cost, stand, direction in board.after_push(position):
            if after not in pushed:
                estimate = moves + cost + sum(board.pushes[box] for box in after[1])
                heapq.heappush(queue, (estimate, next(order), moves + cost, after, (position, stand, direction)))
    return None


def _moves_to(position: Position, pushed: dict[Position, CameBy | None], board: Board) -> tuple[list[str], int]:
    """Moves that lead to a position, with the walks between pushes, and the number of pushes."""
    moves: list[str] = []
    pushes = 0
    while (came_by := pushed[position]) is not None:
        position, tile, direction = came_by
        moves.append(direction)
        walks = board.walks(position)
        while walks[tile][0]:
            _, tile, move = walks[tile]
            moves.append(move)
        pushes += 1
    return moves[::-1], pushes
