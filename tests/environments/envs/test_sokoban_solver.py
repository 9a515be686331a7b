"""Sokoban's solver: shortest solutions, by hand and against a search by coordinates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo_worlds.sokoban import Sokoban
from gxpo_worlds.sokoban_solver import read, solve

seeds = st.integers(0, 2**31 - 1)


STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


LEVELS = [
    {},
    {"size": 5, "walls": 0.3},
    {"boxes": 2, "max_turns": 30, "max_pushes": 6},
    {"size": 7, "boxes": 3, "walls": 0.3, "min_pushes": 2, "max_pushes": 8, "max_turns": 50},
]


class Warehouse:
    """Sokoban on coordinates, written for these tests."""

    def __init__(self, picture: str) -> None:
        tiles = {(r, c): t for r, row in enumerate(picture.split("\n")) for c, t in enumerate(row)}
        self.floor = {p for p, t in tiles.items() if t != "#"}
        self.goals = {p for p, t in tiles.items() if t in ".*+"}
        self.boxes = frozenset(p for p, t in tiles.items() if t in "$*")
        self.agent = next(p for p, t in tiles.items() if t in "@+")

    def move(self, agent, boxes, name):
        """Where agent and boxes are after a move; the same where it is not possible."""
        (r, c), (dr, dc) = agent, STEPS[name]
        target, beyond = (r + dr, c + dc), (r + 2 * dr, c + 2 * dc)
        if target not in self.floor or (target in boxes and (beyond not in self.floor or beyond in boxes)):
            return agent, boxes
        return target, (boxes - {target} | {beyond} if target in boxes else boxes)

    def shortest(self) -> int | None:
        """Moves of a shortest solution, by breadth first over single moves."""
        layer, met, moves = {(self.agent, self.boxes)}, set(), 0
        while layer:
            if any(boxes == self.goals for _, boxes in layer):
                return moves
            met |= layer
            layer = {self.move(agent, boxes, name) for agent, boxes in layer for name in STEPS} - met
            moves += 1
        return None


@given(st.sampled_from(LEVELS[:3]), seeds, st.lists(st.sampled_from("LDRU"), max_size=12))
def test_solutions_are_shortest(options: dict, seed: int, script: list[str]):
    """From positions that any play leads to, lost ones among them; against breadth first over single moves."""
    env = Sokoban(style="bare", **options)
    picture = env.reset(seed).state
    for letter in script:
        text = env.step(letter)
        picture = text.state
        if text.done:
            break
    solution = solve(picture)
    assert (None if solution is None else len(solution[0])) == Warehouse(picture).shortest()


@pytest.mark.parametrize(
    ("picture", "moves", "pushes"),
    [
        ("@$.-\n----\n----", 1, 1),
        ("*--\n-@-\n---", 0, 0),
        ("--@\n-$-\n.--", 5, 2),  # down, push left; up, left, push down
        ("@$#\n-.-\n---", None, None),  # it moves along the edge only
        ("$.-\n---\n--@", None, None),  # in a corner
    ],
)
def test_solutions_by_hand(picture: str, moves: int | None, pushes: int | None):
    solution = solve(picture)
    assert (None if solution is None else (len(solution[0]), solution[1])) == (
        None if moves is None else (moves, pushes)
    )


def test_pushes_that_a_lone_box_needs():
    # to a goal in a corner. From the last row and column a box never comes away: the agent would have to stand outside
    #   0 1 2 -
    #   1 2 3 -
    #   2 3 4 -
    #   - - - -
    board, _ = read(".---\n-@--\n----\n----")
    assert board.pushes == {5 * r + c: r + c for r in range(3) for c in range(3)}
