import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo_worlds.sokoban import Sokoban
from gxpo_worlds.sokoban_solver import solve

seeds = st.integers(0, 2**31 - 1)


STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


LEVELS = [
    {},
    {"size": 5, "walls": 0.3},
    {"boxes": 2, "max_turns": 30, "max_pushes": 6},
    {"size": 7, "boxes": 3, "walls": 0.3, "min_pushes": 2, "max_pushes": 8, "max_turns": 50},
]


def at(picture: str, **options) -> Sokoban:
    """An episode in this state."""
    env = Sokoban(style="bare", **options)
    env.restore(json.dumps({"seed": 0, "turn": 0, "state": picture}))
    return env


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


def test_a_solution_by_hand():
    # beyond the edge is wall: the box can't go left; the agent walks to below it and pushes it up
    env = at(".---\n$@--\n----\n----")
    walk = [env.step(action) for action in "LDLU"]
    assert [s.action_error for s in walk] == ["illegal", None, None, None]
    assert [s.state for s in walk] == [
        ".---\n$@--\n----\n----",
        ".---\n$---\n-@--\n----",
        ".---\n$---\n@---\n----",
        "*---\n@---\n----\n----",
    ]
    assert [(s.reward, s.done, s.success) for s in walk] == [(0, False, None)] * 3 + [(1, True, True)]


def test_goals_show_under_agent_and_box():
    env = at("@*--\n--.-\n$---\n----")
    walk = [env.step(action).state.split("\n")[0] for action in "RRL"]
    assert walk == ["-+$-", "-.@$", "-+-$"]


@pytest.mark.parametrize("row", ["@$$.", "@$#.", "@**.", "@#$.", "@*#$", "$.-@"])
def test_what_can_not_be_pushed(row: str):
    env = at(f"{row}\n##.-\n----\n$--.")
    assert env.step("R").action_error == "illegal" and "R" not in env.legal()


def test_shaped_rewards_by_hand():
    env = at("@$.-\n----\n-.--\n-$--", shaped=True)
    # onto a goal: 1 - 0.1; off it: -1 - 0.1
    assert [env.step("R").reward for _ in range(2)] == pytest.approx([0.9, -1.1])
    assert [env.step(a).reward for a in ("R", "?", "D")] == pytest.approx([-0.1, -0.1, -0.1])
    env = at("*--@\n----\n-.--\n-$--", shaped=True)
    env.restore(json.dumps({"seed": 0, "turn": 0, "state": "*---\n-.--\n-$--\n-@--"}))
    text = env.step("U")
    assert text.reward == pytest.approx(10.9) and text.success is True


def test_lost_positions_go_on():
    env = at("$---\n@.--\n----\n----")  # the box is in a corner
    assert env.expert() is None and env.legal() == ("D", "R")
    text = env.step("D")
    assert not text.done and text.success is None


def test_chat_shows_the_wall_around():
    env = Sokoban(size=5)
    env.restore(json.dumps({"seed": 0, "turn": 0, "state": "@--\n-$.\n#--"}))
    text = env.step("<action>right</action>")
    assert text.observation == "# # # # #\n# - @ - #\n# - $ . #\n# # - - #\n# # # # #"


@given(st.sampled_from(LEVELS), seeds, st.lists(st.sampled_from("LDRU"), max_size=30))
def test_moves_agree_with_coordinates(options: dict, seed: int, script: list[str]):
    env = Sokoban(style="bare", **options)
    state = env.reset(seed).state
    warehouse = Warehouse(state)
    agent, boxes, names = warehouse.agent, warehouse.boxes, dict(zip("LDRU", STEPS, strict=True))
    for letter in script:
        before = agent, boxes
        agent, boxes = warehouse.move(agent, boxes, names[letter])
        text = env.step(letter)
        now = Warehouse(text.state)
        assert (now.agent, now.boxes) == (agent, boxes)
        assert (now.floor, now.goals) == (warehouse.floor, warehouse.goals)
        assert len(now.boxes) == env.boxes
        assert (text.action_error == "illegal") == (before == (agent, boxes))
        assert (text.success is True) == (boxes == warehouse.goals)
        if text.done:
            break


@given(st.sampled_from(LEVELS), seeds)
def test_levels_have_the_options_asked_for(options: dict, seed: int):
    env = Sokoban(style="bare", **options)
    picture = env.reset(seed).state
    warehouse = Warehouse(picture)
    assert [len(row) for row in picture.split("\n")] == [env.size - 2] * (env.size - 2)
    assert picture.count("#") == round(env.walls * (env.size - 2) ** 2)
    assert len(warehouse.boxes) == len(warehouse.goals) == env.boxes and warehouse.boxes != warehouse.goals
    solution = solve(picture)
    assert solution is not None and len(solution[0]) <= env.max_turns
    agent, boxes, pushes = warehouse.agent, warehouse.boxes, 0
    for name in solution[0]:
        after = warehouse.move(agent, boxes, name)
        assert after != (agent, boxes)
        pushes += after[1] != boxes
        agent, boxes = after
    assert boxes == warehouse.goals and env.min_pushes <= pushes == solution[1] <= env.max_pushes
