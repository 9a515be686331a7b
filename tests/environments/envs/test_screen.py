"""What the worlds that are seen have in common, and that their pictures say what their states are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.base.media import PICTURES
from gxpo.environments import envs
from gxpo.parts.protocols import TimeStep
from gxpo_worlds.baseline import baseline
from gxpo_worlds.buttons import Buttons
from gxpo_worlds.frozenlake import FrozenLake
from gxpo_worlds.screen import ScreenWorld
from gxpo_worlds.zoom import Zoom

WORLDS: list[tuple[type[Any], dict[str, Any]]] = [
    (Zoom, {}),
    (Zoom, {"max_turns": 5}),
    (Buttons, {}),
    (Buttons, {"buttons": 6, "steps": [2, 4], "max_turns": 9}),
]
PIXELS = [*WORLDS, (FrozenLake, {"pixels": True}), (FrozenLake, {"pixels": True, "slippery": True})]
worlds = st.sampled_from(WORLDS)
seeds = st.integers(0, 2**31 - 1)
scripts = st.lists(
    st.sampled_from(["crop(64,64,64,64)", "crop(0,0,256,256)", "7", "click(10,10)", "click(52,54)", "click(30,12)",
                     "type(7)", "type(AB)", "jump", "", "<action>0</action>"]), max_size=8,
)  # fmt: skip


def seen(step: TimeStep) -> tuple[np.ndarray, str]:
    """Pixels and text of an observation."""
    (message,) = step.observation
    image, text = message["content"]
    assert (message["role"], image["type"], text["type"]) == ("user", "image", "text")
    return image["image"], text["text"]


def plain(step: TimeStep) -> tuple[Any, ...]:
    pixels, text = seen(step)
    return pixels.tolist(), text, step.state, step.reward, step.done, step.success, step.action_error, step.truncated


def play(env: ScreenWorld, script: list[str]) -> list[tuple[Any, ...]]:
    """What the world says to each action, until it is over."""
    calls: list[tuple[Any, ...]] = []
    for action in script:
        step = env.step(action)
        calls.append(plain(step))
        if step.done:
            break
    return calls


@given(worlds, seeds, seeds, scripts)
@settings(max_examples=40, deadline=None)
def test_everything_follows_from_options_seed_and_actions(world, seed: int, other: int, script: list[str]):
    kind, options = world
    env, again = kind(style="bare", **options), kind(style="bare", **options)
    again.reset(other)
    play(again, script)
    first = env.reset(seed)
    content = env.content(other), env.content(seed)
    assert plain(first) == plain(again.reset(seed)) and play(env, script) == play(again, script)
    assert content == (again.content(other), again.content(seed))
    assert (first.reward, first.done, first.success, first.action_error) == (None, False, None, None)


@given(worlds, seeds, scripts, scripts, st.sampled_from(["bare", "chat"]))
@settings(max_examples=40, deadline=None)
def test_a_restored_episode_has_the_same_future(world, seed: int, before: list[str], after: list[str], style: str):
    kind, options = world
    env, restored = kind(style=style, **options), kind(style=style, **options)
    env.reset(seed)
    text = play(env, before)
    snapshot = env.snapshot()
    restored.reset(seed + 1)
    restored.restore(snapshot)
    assert restored.snapshot() == snapshot and json.loads(snapshot)["seed"] == seed
    assert (restored.legal(), restored.expert()) == (env.legal(), env.expert())
    if not text or not text[-1][4]:
        assert play(env, after) == play(restored, after)


@pytest.mark.parametrize(("kind", "options"), WORLDS)
@pytest.mark.parametrize("style", ["bare", "chat"])
def test_legal_actions_change_the_state_and_others_say_why_not(kind, options, style):
    env = kind(style=style, **options)
    for seed in range(4):
        for action in (env.reset(seed), env.legal())[1]:
            first = env.reset(seed)
            after = env.step(action)
            assert after.action_error is None and after.state != first.state and after.reward is None
        pixels, text = seen(env.reset(seed))
        wrong = env.step("jump")
        assert (wrong.action_error, wrong.state, wrong.done) == ("malformed", env.first, False)
        again, messages = seen(wrong)
        assert (again == pixels).all()
        assert messages == (text if style == "bare" else f"No action could be read. Nothing changed.\n{text}")


@pytest.mark.parametrize(("kind", "options"), PIXELS)
def test_a_picture_is_pixels_and_nobody_shares_it(kind, options):
    env = kind(**options)
    step = env.reset(1)
    for _ in range(2):
        pixels, _ = seen(step)
        side = 32 if kind is Zoom else 64
        assert pixels.shape == (side, side, 3) and pixels.dtype == np.uint8
        pixels[:] = 0  # of no consequence
        step = env.step(env.expert())
    assert seen(env.reset(1))[0].any()


@pytest.mark.parametrize(("kind", "options"), WORLDS)
def test_experts_win_and_chance_seldom_does(kind, options):
    env = kind(style="bare", **options)
    assert baseline(env, range(100), "expert").success == 1.0
    chance = baseline(env, range(200)).success
    assert chance < 0.25 and (chance > 0 or options)


@pytest.mark.parametrize(("kind", "options"), WORLDS)
def test_experts_mend_what_chance_began(kind, options):
    env = kind(style="bare", **{"max_turns": 20, **options})
    won = 0
    for seed in range(30):
        env.reset(seed)
        actions = [a for a in env.legal() if a.startswith(("crop", "click", "type")) and a != "click(52,54)"]
        step = env.step(actions[int(np.random.default_rng(seed).integers(len(actions)))])
        while not step.done:
            step = env.step(env.expert())
        won += step.success
    assert won == 30


@pytest.mark.parametrize(("kind", "options"), WORLDS)
def test_an_episode_that_is_over_stays_over(kind, options):
    env = kind(style="bare", **options)
    with pytest.raises(GxpoError, match="has not begun"):
        env.step("7")
    assert env.legal() == () and env.expert() is None
    env.reset(0)
    text = [env.step("jump") for _ in range(env.max_turns)]
    assert [s.truncated for s in text] == [False] * (env.max_turns - 1) + [True]
    assert text[-1].done and text[-1].success is False and env.legal() == () and env.expert() is None
    with pytest.raises(GxpoError, match="is over"):
        env.step("7")


@pytest.mark.parametrize(("kind", "options"), WORLDS)
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"seed": 0, "turn": 0, "state": "?"}', '{"seed": -1, "turn": 0, "state": ""}',
             '{"seed": 0, "turn": 0, "state": "0,0,999,9"}', '{"seed": 0, "turn": 0, "state": "ZZ||"}',
             '{"seed": 0, "turn": true, "state": ""}'],
)  # fmt: skip
def test_what_is_no_snapshot_is_refused(kind, options, text):
    env = kind(**options)
    env.reset(3)
    before = env.snapshot()
    with pytest.raises(GxpoError, match="no snapshot of it"):
        env.restore(text)
    assert env.snapshot() == before and env.expert() is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zoom", "buttons", "frozenlake"])
@pytest.mark.parametrize("style", ["chat", "bare"])
def test_they_are_fit_for_training(name, style):
    options = {"style": style, **({"pixels": True} if name == "frozenlake" else {})}
    actual = envs.check(envs.source(name, options), seeds=range(4))
    assert actual.problems == () and actual.success == 1.0 and actual.contents == 4
    assert {"states", "expert", "legal", "snapshots", "content"} <= set(actual.provides)


def test_a_pool_shows_what_the_world_shows():
    with envs.EnvPool(envs.source("buttons", {"style": "bare"}), workers=1) as pool:
        (message,) = pool.reset({"a": 5})["a"].observation
    pixels, text = seen(Buttons(style="bare").reset(5))
    image, words = message["content"]
    assert (PICTURES.pixels(image["image"]) == pixels).all() and words["text"] == text


@pytest.mark.parametrize("kind", [Zoom, Buttons])
def test_options_that_make_no_sense(kind):
    for options, match in (({"style": "loud"}, "style must be"), ({"max_turns": 0}, "max_turns must be")):
        with pytest.raises(ConfigError, match=match) as caught:
            kind(**options)
        assert "\n" not in str(caught.value)
