import json
from collections import Counter
from functools import lru_cache

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.base.errors import ConfigError, MissingExtra
from gxpo_worlds.frozenlake import FrozenLake

LETTERS = "LDRU"  # gymnasium's numbers 0 to 3
seeds = st.integers(0, 2**31 - 1)


def at(picture: str, turn: int = 0, seed: int = 0, **options) -> FrozenLake:
    """An episode in this state."""
    env = FrozenLake(style="bare", **options)
    env.restore(json.dumps({"seed": seed, "turn": turn, "state": picture}))
    return env


def test_a_walk_by_hand():
    env = at("@..\n.O.\n..G", size=3)
    assert env.legal() == ("D", "R")
    walk = [env.step(action) for action in ("L", "R", "R", "up", "D", "D")]
    assert [s.state for s in walk] == [
        "@..\n.O.\n..G",
        ".@.\n.O.\n..G",
        "..@\n.O.\n..G",
        "..@\n.O.\n..G",
        "...\n.O@\n..G",
        "...\n.O.\n..*",
    ]
    assert [s.action_error for s in walk] == ["illegal", None, None, "illegal", None, None]
    assert [s.reward for s in walk] == [0, 0, 0, 0, 0, 1]
    assert [s.done for s in walk] == [False] * 5 + [True]
    assert walk[-1].success is True and walk[-1].observation == "...\n.O.\n..*\n>"


def test_a_hole_by_hand():
    env = at(".@.\n.O.\n..G", size=3)
    text = env.step("D")
    assert (text.state, text.reward, text.done, text.success) == ("...\n.X.\n..G", 0, True, False)
    assert not text.truncated and text.action_error is None and env.legal() == ()


def test_a_compact_observation_costs_21_characters():
    assert len(FrozenLake(style="bare").reset(0).observation) == 4 * 5 + 1


def test_chat_shows_a_tile_as_a_word():
    env = FrozenLake()
    env.restore(json.dumps({"seed": 0, "turn": 0, "state": "@..\n.O.\n..G"}))
    assert env.step("<action>down</action>").observation == ". . .\n@ O .\n. . G"
    assert "slippery" in FrozenLake(slippery=True).instructions and "slippery" not in env.instructions


@given(seeds, st.booleans(), st.lists(st.sampled_from(range(4)), min_size=1, max_size=12), st.sampled_from([4, 5]))
def test_the_dynamics_are_gymnasiums(seed: int, slippery: bool, actions: list[int], size: int):
    """The same lake made and stepped with gymnasium alone; where it slips is drawn from the documented key."""
    env = FrozenLake(style="bare", slippery=slippery, size=size)
    picture = env.reset(seed).state
    letters = {"@": "S", ".": "F", "O": "H", "G": "G"}
    desc = ["".join(letters[tile] for tile in row) for row in picture.split("\n")]
    direct = gymnasium.make("FrozenLake-v1", desc=desc, is_slippery=slippery)
    place, _ = direct.reset(seed=0)
    for turn, action in enumerate(actions):
        direct.unwrapped.np_random = np.random.Generator(np.random.Philox(np.random.SeedSequence((2, turn, seed))))
        next_place, reward, terminated, _, _ = direct.step(action)
        text = env.step(LETTERS[action])
        rows = text.state.split("\n")
        actual = [(r, c) for r, row in enumerate(rows) for c, tile in enumerate(row) if tile in "@X*"]
        assert actual == [divmod(next_place, size)]
        if not slippery:
            assert (text.action_error == "illegal") == (next_place == place)
        else:
            assert text.action_error is None
        assert (text.reward, text.done and not text.truncated) == (reward, terminated)
        assert text.success == (
            {"*": True, "X": False}.get(rows[actual[0][0]][actual[0][1]], None if not text.done else False)
        )
        if text.done:
            return
        place = next_place


def test_ice_is_slippery_to_both_sides_alike():
    # from the centre of open ice, down leads down, left or right with probability 1/3 each: 200 of 600, give or take 12
    landed = Counter(
        at("G....\n.....\n..@..\n.....\n.....", seed=s, size=5, slippery=True).step("D").state for s in range(600)
    )
    rows = {tuple(divmod(state.index("@"), 6)) for state in landed}
    assert rows == {(3, 2), (2, 1), (2, 3)}
    assert all(150 < count < 250 for count in landed.values())


def test_slips_depend_on_seed_and_turn_only():
    lake = "G....\n.....\n..@..\n.....\n....."
    assert len({at(lake, turn=t, size=5, slippery=True).step("D").state for t in range(10)}) > 1
    env = at(lake, turn=3, seed=5, size=5, slippery=True)
    env.legal(), env.expert()
    assert env.step("D") == at(lake, turn=3, seed=5, size=5, slippery=True).step("D")


def distances(picture: str) -> dict[tuple[int, int], int]:
    """Moves from each safe tile to the goal, by relaxation until nothing changes."""
    rows = picture.split("\n")
    tiles = {(r, c): tile for r, row in enumerate(rows) for c, tile in enumerate(row)}
    actual = {place: 0 for place, tile in tiles.items() if tile == "G"}
    for _ in tiles:
        for r, c in tiles:
            near = [actual[p] for p in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)) if p in actual]
            if tiles[r, c] != "O" and near:
                actual[r, c] = min(actual.get((r, c), 99), 1 + min(near))
    return actual


@given(seeds, st.sampled_from([(3, 0.2, 1), (4, 0.2, 2), (4, 0.4, 5), (6, 0.25, 4), (8, 0.1, 8)]))
def test_lakes_keep_their_options_and_experts_take_shortest_ways(seed: int, options: tuple):
    size, holes, distance = options
    env = FrozenLake(style="bare", size=size, holes=holes, distance=distance, max_turns=25)
    picture = env.reset(seed).state
    assert [len(row) for row in picture.split("\n")] == [size] * size
    assert picture.count("@") == picture.count("G") == 1 and picture.count("O") == round(holes * (size**2 - 2))
    start = divmod(picture.index("@"), size + 1)
    moves = distances(picture)[start]
    assert distance <= moves <= 25
    turns = 0
    while env.expert() is not None:
        text = env.step(env.expert())
        turns += 1
    assert text.success is True and turns == moves


@pytest.mark.parametrize("picture", ["@..\n.OO\n..G", "..O\n@.O\n..G", "O.@\n...\n.GO"])
@pytest.mark.parametrize("turns", [2, 4])
def test_the_expert_on_slippery_ice_has_the_best_chances(picture: str, turns: int):
    rows = picture.replace("@", ".").split("\n")
    sides = {"L": "ULD", "D": "LDR", "R": "DRU", "U": "RUL"}
    steps = {"L": (0, -1), "D": (1, 0), "R": (0, 1), "U": (-1, 0)}

    def value(r: int, c: int, action: str, left: int) -> float:
        total = 0.0
        for direction in sides[action]:
            dr, dc = steps[direction]
            nr, nc = min(max(r + dr, 0), 2), min(max(c + dc, 0), 2)
            total += 1.0 if rows[nr][nc] == "G" else 0.0 if rows[nr][nc] == "O" else best(nr, nc, left - 1)
        return total / 3

    @lru_cache(None)
    def best(r: int, c: int, left: int) -> float:
        return max(value(r, c, action, left) for action in LETTERS) if left else 0.0

    for r, c in [(r, c) for r in range(3) for c in range(3) if rows[r][c] == "."]:
        local_rows = [list(row) for row in rows]
        local_rows[r][c] = "@"
        env = at("\n".join(map("".join, local_rows)), turn=12 - turns, size=3, slippery=True)
        assert value(r, c, env.expert(), turns) == pytest.approx(best(r, c, turns), abs=1e-4)


@pytest.mark.parametrize("slippery", [False, True])
def test_too_late_the_expert_goes_on(slippery: bool):
    env = at("@...\n....\n....\n...G", turn=11, slippery=slippery)
    assert env.expert() in ("D", "R")
    # no way to the goal at all
    assert at("@O..\nOO..\n....\n...G", slippery=slippery).expert() is None


def test_without_gymnasium(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    env = at("@..\n..O\nO.G", size=3)
    with pytest.raises(MissingExtra, match=r"gxpo\[envs\]"):
        env.step("D")


# ---------------------------------------------------------------- by pixels
ICE, HOLE, GOAL, RED, LINE = (205, 225, 240), (25, 35, 90), (40, 180, 70), (225, 45, 45), (90, 100, 115)


def seen(step) -> tuple[np.ndarray, str]:
    ((image, text),) = (message["content"] for message in step.observation)
    return image["image"], text["text"]


def test_a_picture_by_hand():
    # 4 x 4 cells of 16 pixels with a line at the right and below; the agent is 7 x 7 in the middle of its cell
    env = at("@.O.\n....\n....\n...G", pixels=True)
    pixels, text = seen(env.step("D"))
    assert pixels.shape == (64, 64, 3) and pixels.dtype == np.uint8 and text == ">"
    cells = {(r, c): tuple(pixels[16 * r, 16 * c].tolist()) for r in range(4) for c in range(4)}
    assert cells == {(r, c): ICE for r in range(4) for c in range(4)} | {(0, 2): HOLE, (3, 3): GOAL}
    rows, columns = np.nonzero((pixels == RED).all(axis=2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (20, 26, 4, 10)
    assert (pixels[15] == LINE).all() and (pixels[:, 63] == LINE).all()


def test_ends_by_pixels():
    for picture, action, ground, success in ((".@.\n.O.\n..G", "D", HOLE, False), ("...\n.O.\n.@G", "R", GOAL, True)):
        step = at(picture, size=3, pixels=True).step(action)
        pixels, _ = seen(step)
        left, top = (42, 42) if success else (21, 21)  # thirds of 64: 21, 42
        assert pixels[top, left].tolist() == list(ground) and (pixels == RED).all(axis=2).any()
        assert step.success is success


@given(seeds, st.lists(st.sampled_from([*LETTERS, "?"]), max_size=8), st.booleans(), st.sampled_from(["bare", "chat"]))
def test_pixels_change_nothing_but_what_is_seen(seed: int, actions: list[str], slippery: bool, style: str):
    options = {"style": style, "slippery": slippery}
    read, look = FrozenLake(**options), FrozenLake(**options, pixels=True)
    assert read.content(seed) == look.content(seed)
    steps = [(read.reset(seed), look.reset(seed))]
    for action in actions:
        if steps[-1][0].done:
            break
        assert (read.legal(), read.expert(), read.snapshot()) == (look.legal(), look.expert(), look.snapshot())
        steps.append((read.step(action), look.step(action)))
    for text, picture in steps:
        fields = [{**vars(step), "observation": None} for step in (text, picture)]
        assert fields[0] == fields[1]
        note, _, requests = seen(picture)[1].rpartition("\n")
        assert requests == ("Which way?" if style == "chat" else ">")
        assert style == "bare" or str(text.observation).startswith(note)


def test_words_for_pixels():
    assert "red square" in FrozenLake(pixels=True).instructions and "@" not in FrozenLake(pixels=True).instructions
    assert "slippery" in FrozenLake(pixels=True, slippery=True).instructions
    with pytest.raises(ConfigError, match="pixels must be true or false, not 1"):
        FrozenLake(pixels=1)


def test_the_level_is_the_number_of_moves_of_the_expert():
    env = FrozenLake(style="bare")
    for seed in range(20):
        env.reset(seed)
        moves = 0
        while not env.step(env.expert()).done:
            moves += 1
        assert env.level(seed) == moves + 1
