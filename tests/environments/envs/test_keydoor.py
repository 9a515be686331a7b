import json

from hypothesis import given
from hypothesis import strategies as st

from gxpo_worlds.keydoor import KeyDoor

seeds = st.integers(0, 2**31 - 1)
sizes = st.sampled_from([3, 4, 5, 7])


def at(picture: str) -> KeyDoor:
    """An episode in this state."""
    env = KeyDoor(style="bare")
    env.restore(json.dumps({"seed": 0, "turn": 0, "state": picture}))
    return env


def places(picture: str) -> dict[tuple[int, int], str]:
    return {(r, c): tile for r, row in enumerate(picture.split("\n")) for c, tile in enumerate(row)}


def beside(place: tuple[int, int]) -> list[tuple[int, int]]:
    r, c = place
    return [(r, c - 1), (r + 1, c), (r, c + 1), (r - 1, c)]


def where(picture: str, symbols: str) -> list[tuple[int, int]]:
    return [place for place, tile in places(picture).items() if tile in symbols]


def reachable(picture: str, closed: str) -> set[tuple[int, int]]:
    """Tiles that can be walked to where only tiles in `closed` block."""
    tiles = places(picture)
    actual = set(where(picture, "@"))
    while more := {p for q in actual for p in beside(q) if tiles.get(p, "#") not in closed} - actual:
        actual |= more
    return actual


def test_an_episode_by_hand():
    env = at("@#.\n.D.\nK#G")
    episode = [
        ("P", "@#.\n.D.\nK#G", "illegal"),  # the key is two tiles away
        ("R", "@#.\n.D.\nK#G", "illegal"),  # a wall
        ("D", ".#.\n@D.\nK#G", None),
        ("R", ".#.\n@D.\nK#G", "illegal"),  # a locked door
        ("O", ".#.\n@D.\nK#G", "illegal"),  # next to the door, without the key
        ("D", ".#.\n@D.\nK#G", "illegal"),  # one can't walk onto the key
        ("pickup", ".#.\n&D.\n.#G", None),
        ("P", ".#.\n&D.\n.#G", "illegal"),
        ("U", "&#.\n.D.\n.#G", None),
        ("O", "&#.\n.D.\n.#G", "illegal"),  # the door is not next to the agent, only across a corner
        ("D", ".#.\n&D.\n.#G", None),
        ("O", ".#.\n@..\n.#G", None),
        ("R", ".#.\n.@.\n.#G", None),
        ("R", ".#.\n..@\n.#G", None),
        ("D", ".#.\n...\n.#*", None),
    ]
    text = [env.step(action) for action, _, _ in episode]
    assert [(s.state, s.action_error) for s in text] == [(state, error) for _, state, error in episode]
    assert [s.reward for s in text] == [0] * 14 + [1]
    assert [s.success for s in text] == [None] * 14 + [True] and text[-1].done and not text[-1].truncated


def test_legal_actions_by_hand():
    assert at("@#.\n.D.\nK#G").legal() == ("D",)
    assert at(".#.\n@D.\nK#G").legal() == ("U", "P")
    assert at(".#.\n&D.\n.#G").legal() == ("D", "U", "O")


def test_the_expert_by_hand():
    # down, pickup, open, right, right, down
    env = at("@#.\n.D.\nK#G")
    actions = []
    while (best := env.expert()) is not None:
        actions.append(best)
        env.step(best)
    assert "".join(actions) == "DPORRD"


def test_chat_shows_a_tile_as_a_word():
    env = KeyDoor()
    env.restore(at("@#.\n.D.\nK#G").snapshot())
    assert env.step("<action>down</action>").observation == ". # .\n@ D .\nK # G"
    assert env.step("<action>pickup</action>").observation == ". # .\n& D .\n. # G"
    assert "<action>open</action>" in env.legal() and "& " not in KeyDoor(style="bare").instructions


@given(seeds, sizes)
def test_rooms_are_cut_in_two_by_a_wall_with_one_door(seed: int, size: int):
    picture = KeyDoor(style="bare", size=size, max_turns=60).content(seed)
    tiles = places(picture)
    assert len(tiles) == size**2 and [len(where(picture, symbol)) for symbol in "@KDG"] == [1] * 4
    wall = where(picture, "#D")
    assert len(wall) == size and (len({r for r, _ in wall}) == 1 or len({c for _, c in wall}) == 1)
    mine = reachable(picture, closed="#D")
    assert where(picture, "K")[0] in mine and where(picture, "G")[0] not in mine
    assert len(mine) in {size * k for k in range(1, size - 1)}
    assert where(picture, "G")[0] in reachable(picture, closed="#")


@given(seeds, sizes, st.lists(st.sampled_from("LDRUPO"), max_size=40))
def test_actions_agree_with_coordinates(seed: int, size: int, script: list[str]):
    """The same rules on sets of coordinates, the key and the door as two facts of their own."""
    env = KeyDoor(style="bare", size=size, max_turns=60)
    picture = env.reset(seed).state
    (agent,), (key,), (door,), (goal,) = (where(picture, symbol) for symbol in "@KDG")
    floor = set(where(picture, ".@G"))
    is_held, locked = False, True
    for action in script:
        before = (agent, is_held, key, locked)
        if action == "P" and key in beside(agent):
            is_held, key = True, None
            floor.add(before[2])
        elif action == "O" and is_held and locked and door in beside(agent):
            is_held, locked = False, False
            floor.add(door)
        elif action in "LDRU" and (target := beside(agent)["LDRU".index(action)]) in floor:
            agent = target
        text = env.step(action)
        assert where(text.state, "@&*") == [agent]
        assert ("&" in text.state, "K" in text.state, "D" in text.state) == (is_held, key is not None, locked)
        assert (text.action_error == "illegal") == (before == (agent, is_held, key, locked))
        assert len(where(text.state, "#")) == size - 1
        assert (text.success is True) == (agent == goal)
        if text.done:
            break


@given(seeds, sizes)
def test_the_expert_takes_a_shortest_way(seed: int, size: int):
    """Two legs, each a shortest walk to a tile beside its end: the goal is never nearer before the door is open."""
    env = KeyDoor(style="bare", size=size, max_turns=60)
    picture = env.reset(seed).state
    tiles = places(picture)
    (agent,), (key,), (door,), (goal,) = (where(picture, symbol) for symbol in "@KDG")

    def steps(start: tuple[int, int], closed: str) -> dict[tuple[int, int], int]:
        actual, queue = {start: 0}, [start]
        for place in queue:
            for neighbour in beside(place):
                if tiles.get(neighbour, "#") not in closed and neighbour not in actual:
                    actual[neighbour] = actual[place] + 1
                    queue.append(neighbour)
        return actual

    to_key = steps(agent, "#DK")
    ways = []
    for place in beside(key):
        if place in to_key:
            to_door = steps(place, "#D")
            ways += [to_key[place] + 1 + to_door[p] + 1 + steps(p, "#")[goal] for p in beside(door) if p in to_door]
    turns = 0
    while (best := env.expert()) is not None:
        text = env.step(best)
        turns += 1
    assert text.success is True and turns == min(ways)
