"""What the three grid worlds have in common."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.parts.protocols import TimeStep
from gxpo_worlds.baseline import Baseline, baseline
from gxpo_worlds.frozenlake import FrozenLake
from gxpo_worlds.grid import GridWorld, shortest, tile_ahead
from gxpo_worlds.keydoor import KeyDoor
from gxpo_worlds.sokoban import Sokoban

WORLDS = [
    (FrozenLake, {}),
    (FrozenLake, {"size": 3, "holes": 0.0, "distance": 1}),
    (FrozenLake, {"size": 6, "holes": 0.3, "distance": 5, "max_turns": 25}),
    (FrozenLake, {"slippery": True}),
    (Sokoban, {}),
    (Sokoban, {"boxes": 2, "max_turns": 30, "shaped": True}),
    (Sokoban, {"size": 7, "boxes": 3, "walls": 0.0, "min_pushes": 3, "max_pushes": 8, "max_turns": 40}),
    (KeyDoor, {}),
    (KeyDoor, {"size": 3}),
    (KeyDoor, {"size": 7, "max_turns": 60}),
]
CERTAIN = [(kind, options) for kind, options in WORLDS if "slippery" not in options]
worlds = st.sampled_from(WORLDS)
seeds = st.integers(0, 2**31 - 1)
scripts = st.lists(st.sampled_from(["L", "D", "R", "U", "P", "O", "left", "jump", ""]), max_size=30)


def play(env: GridWorld, script: list[str]) -> list[TimeStep]:
    """What the world says to each action, until it is over."""
    steps: list[TimeStep] = []
    for action in script:
        if steps and steps[-1].done:
            break
        steps.append(env.step(action))
    return steps


def test_the_tiles_next_to_a_tile():
    # abc
    # def
    picture = "abc\ndef"
    tile_by_move = {move: tile_ahead(picture, picture.index("e"), move) for move in ("left", "right", "up", "down")}
    assert {move: picture[at] for move, at in tile_by_move.items() if at is not None} == {
        "left": "d",
        "right": "f",
        "up": "b",
    }
    assert [tile_ahead(picture, picture.index("c"), move) for move in ("right", "up")] == [None, None]
    assert [tile_ahead(picture, picture.index("d"), move) for move in ("left", "down")] == [None, None]


def test_shortest_lists_of_actions():
    doubled = {"double": lambda n: 2 * n, "add": lambda n: n + 1}

    def result(state: str, action: str) -> str | None:
        n = doubled[action](int(state))
        return str(n) if n < 100 else None

    # 1 -> 2 -> 3 -> 6 -> 12; no list of three leads there: they reach at most 8 from 1, or 4 to 6 with one addition
    way = shortest("1", doubled, result, lambda state: state == "12")
    assert way is not None and len(way) == 4
    assert shortest("5", doubled, result, lambda state: state == "5") == []
    assert shortest("5", doubled, result, lambda state: state == "4") is None


@given(worlds, seeds, seeds, scripts)
def test_everything_follows_from_options_seed_and_actions(world, seed: int, other: int, script: list[str]):
    kind, options = world
    env, again = kind(style="bare", **options), kind(style="bare", **options)
    again.reset(other)
    play(again, script)
    first = env.reset(seed)
    assert first == again.reset(seed) and play(env, script) == play(again, script)
    assert first.state == env.content(seed) == again.content(seed)
    assert (first.reward, first.done, first.success, first.action_error) == (None, False, None, None)


@given(worlds, seeds, scripts, scripts, st.sampled_from(["bare", "chat"]))
def test_a_restored_episode_has_the_same_future(world, seed: int, before: list[str], after: list[str], style: str):
    kind, options = world
    env, restored = kind(style=style, **options), kind(style=style, **options)
    text = [env.reset(seed), *play(env, before)]
    snapshot = env.snapshot()
    json.loads(snapshot)
    restored.reset(seed + 1)
    env.content(seed + 2)  # asking for the content of an instance leaves the episode as it is
    restored.restore(snapshot)
    assert restored.snapshot() == snapshot
    assert (restored.legal(), restored.expert()) == (env.legal(), env.expert())
    if not text[-1].done:
        assert play(env, after) == play(restored, after)


@pytest.mark.parametrize(("kind", "options"), WORLDS)
def test_a_restored_episode_goes_on_with_its_turn(kind: type[GridWorld], options: dict):
    env, restored = kind(style="bare", **options), kind(style="bare", **options)
    env.reset(3)
    play(env, ["nothing"] * (env.max_turns - 2))
    restored.restore(env.snapshot())
    assert [s.truncated for s in play(restored, ["nothing"] * 2)] == [False, True]


@given(worlds, seeds, scripts)
def test_bare_observations_are_functions_of_the_state(world, seed: int, script: list[str]):
    kind, options = world
    env = kind(style="bare", **options)
    for said_reset in [env.reset(seed), *play(env, script)]:
        assert said_reset.observation == f"{said_reset.state}\n>"
    assert env.instructions == ""


@given(worlds, seeds, scripts)
def test_what_is_not_possible_changes_nothing(world, seed: int, script: list[str]):
    kind, options = world
    env = kind(style="bare", **options)
    state, known_uppers = env.reset(seed).state, {name[0].upper() for name in env.actions} | {"left"}
    for turns, action in enumerate(script, 1):
        legal = env.legal()
        text = env.step(action)
        expected = None if action in legal or (action == "left" and "L" in legal) else "illegal"
        assert text.action_error == (expected if action in known_uppers else "malformed")
        if text.action_error is not None:
            assert text.state == state and text.reward == (-0.1 if options.get("shaped") else 0)
        elif not options.get("slippery"):
            assert text.state != state
        state = text.state
        assert text.truncated == (text.done and text.success is False and turns == env.max_turns and "X" not in state)
        if text.done:
            assert text.success is not None and env.legal() == () and env.expert() is None
            with pytest.raises(GxpoError, match="is over"):
                env.step("L")
            break
        assert text.success is None


@given(st.sampled_from(CERTAIN), seeds)
def test_the_expert_always_succeeds_in_time(world, seed: int):
    kind, options = world
    env = kind(style="bare", **options)
    text, best = env.reset(seed), env.expert()
    states = {text.state}
    while not text.done:
        assert best in env.legal()
        text = env.step(best)
        assert text.state not in states  # a shortest solution meets no state twice
        states.add(text.state)
        best = env.expert()
    assert text.success is True and not text.truncated
    assert text.reward == pytest.approx(10.9 if options.get("shaped") else 1)  # -0.1 + 1 + 10


@pytest.mark.parametrize(("kind", "options"), WORLDS)
def test_the_last_turn_truncates(kind: type[GridWorld], options: dict):
    env = kind(style="bare", **options)
    env.reset(3)
    text = [env.step("nothing") for _ in range(env.max_turns)]
    assert [s.done for s in text] == [False] * (env.max_turns - 1) + [True]
    assert text[-1].truncated and text[-1].success is False and text[-1].action_error == "malformed"


@pytest.mark.parametrize("kind", [FrozenLake, Sokoban, KeyDoor])
def test_chat_style(kind: type[GridWorld]):
    env = kind()
    seed = next(s for s in range(20) if env.reset(s) and len(env.legal()) < len(env.actions))
    first = env.reset(seed)
    assert set(first.state) - {".", "\n"} <= set(env.instructions) and "dot" in env.instructions
    assert all(name in env.instructions for name in env.actions) and "<action>left</action>" in env.instructions
    text = env.step("I would rather not say.")
    assert text.observation == f"No action could be read. Nothing changed.\n{first.observation}"
    illegal = next(name for name in env.actions if f"<action>{name}</action>" not in env.legal())
    text = env.step(f"Perhaps <action>{illegal}</action>")
    assert text.observation == f"That is not possible here. Nothing changed.\n{first.observation}"
    assert (text.action_error, text.state) == ("illegal", first.state)
    best = env.expert()
    assert best is not None and best in env.legal()
    text = env.step(f"The best that I can do here is this.\n{best}")
    assert text.action_error is None and text.state != first.state and text.observation != first.observation


@pytest.mark.parametrize(("kind", "options"), WORLDS)
def test_instances_are_many(kind: type[GridWorld], options: dict):
    env = kind(**options)
    contents = [env.content(seed) for seed in range(40)]
    assert len(set(contents)) > (20 if options.get("size") == 3 else 35)


@pytest.mark.parametrize("kind", [FrozenLake, Sokoban, KeyDoor])
def test_chance_succeeds_sometimes(kind: type[GridWorld]):
    # 150 episodes: the standard error of a share of 0.15 is 0.03
    assert 0.04 < baseline(kind(style="bare"), range(150)).success < 0.3


def test_a_step_before_any_reset():
    with pytest.raises(GxpoError, match="has not begun"):
        Sokoban().step("L")
    assert Sokoban().legal() == () and Sokoban().expert() is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"seed": 1, "turn": 0}', '{"seed": 1, "turn": 0, "state": 7}'),
        '{"seed": -1, "turn": 0, "state": ""}',
        '{"seed": true, "turn": 0, "state": ""}',
        '{"seed": 1, "turn": 0.5, "state": ""}',
        '{"seed": 1, "turn": 0, "state": "@."}',  # one row is no picture
        '{"seed": 1, "turn": 0, "state": "@..\\n.."}',
        '{"seed": 1, "turn": 0, "state": "@..\\n..@"}',
        '{"seed": 1, "turn": 0, "state": "...\\n..."}',
        '{"seed": 1, "turn": 0, "state": "@..\\n.?."}',
    ],
)
def test_bad_snapshots(text: str):
    for env in (FrozenLake(), Sokoban(), KeyDoor()):
        with pytest.raises(GxpoError, match="no snapshot"):
            env.restore(text)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (KeyDoor, {"style": "terse"}, "style must be 'chat' or 'bare', not 'terse'"),
        (KeyDoor, {"max_turns": 0}, "max_turns must be a whole number from 1"),
        (KeyDoor, {"size": 2}, "keydoor: size must be a whole number from 3 to 10, not 2"),
        (FrozenLake, {"size": True}, "size must be a whole number"),
        (FrozenLake, {"size": 4.0}, "size must be a whole number"),
        (FrozenLake, {"holes": 0.9}, "holes must be a number from 0 to 0.5"),
        (FrozenLake, {"slippery": 1}, "slippery must be true or false"),
        (Sokoban, {"boxes": 4}, "boxes must be a whole number from 1 to 3"),
        (Sokoban, {"min_pushes": 5, "max_pushes": 4}, "max_pushes must be a whole number from 5"),
        (Sokoban, {"shaped": "no"}, "shaped must be true or false"),
    ],
)
def test_bad_options(kind: type[GridWorld], options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        kind(**options)


@pytest.mark.parametrize("env", [FrozenLake(size=3, distance=9), Sokoban(size=5, min_pushes=20, max_pushes=20)])
def test_options_without_instances(env: GridWorld):
    with pytest.raises(ConfigError, match="found no instance with these options"):
        env.reset(0)


class Countdown:
    """Succeeds when `seed` actions have been taken; two of the three legal ones count."""

    max_turns = 4

    def reset(self, seed: int) -> TimeStep:
        self.left = seed
        return TimeStep("")

    def step(self, action: str) -> TimeStep:
        self.left -= action != "wait"
        return TimeStep("", reward=0.5, done=self.left == 0, success=True if self.left == 0 else None)

    def legal(self) -> tuple[str, ...]:
        return ("one", "wait", "a")

    def expert(self) -> str | None:
        return "one" if self.left != 3 else None


def test_baselines_by_hand():
    # seeds 1, 2: succeed after 1 and 2 turns; 3: gives up at once; 6: 6, 5, 4, then gives up at 3
    assert baseline(Countdown(), [1, 2, 3, 6], "expert") == Baseline(
        0.5, (1 + 2 + 0 + 3) / 4, (0.5 + 1 + 0 + 1.5) / 4, 4
    )
    by_chance = baseline(Countdown(), range(1, 5))
    assert by_chance == baseline(Countdown(), range(1, 5)) and by_chance.episodes == 4
    assert baseline(Countdown(), [50]).turns == 4  # the limit of the environment


def test_baselines_that_can_not_be():
    with pytest.raises(ConfigError, match="'random' or 'expert', not 'lucky'"):
        baseline(Countdown(), [1], "lucky")
    with pytest.raises(ConfigError, match="has no expert"):
        baseline(SimpleNamespace(), [1], "expert")
    with pytest.raises(ConfigError, match="at least one seed"):
        baseline(Countdown(), [])
