"""TextWorldExpress against a stand-in of the library, and the real one where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.environments.envs import fake_libraries
from tests.environments.envs.fake_libraries import REASON, play, the_expert_succeeds_twice, using

from gxpo.environments.envs.adapters import AdapterError
from gxpo.environments.envs.adapters import textworld as textworld_module
from gxpo.environments.envs.adapters.textworld import TextWorldExpress


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(textworld_module.shutil, "which", lambda name: "/usr/bin/java")
    textworld_module._shared_process.cache_clear()
    textworld_module._idle_processes.cache_clear()
    yield
    textworld_module._shared_process.cache_clear()
    textworld_module._idle_processes.cache_clear()


@using("textworld")
def test_textworld_pays_the_change_of_the_score(library: str, java: None) -> None:
    """Two rooms to go for game seed 1: the score is 1/4, 2/4, then 1."""
    steps = play(TextWorldExpress("coin"), 1, ["move east", "<action> Move East </action>", "take coin"])
    assert [s.reward for s in steps] == [None, 0.25, 0.25, 0.5]
    assert [s.done for s in steps] == [False, False, False, True]
    assert steps[-1].success is True and not steps[-1].truncated
    assert steps[0].observation == "Task: Take the coin.\n\nRoom 0.\n\nNothing.\n\nPossible actions: move east"
    assert steps[-1].observation == "You take it."
    assert len({s.state for s in steps}) == 4


@using("textworld")
def test_the_expert_leads_to_the_goal_until_the_path_is_left(library: str, java: None) -> None:
    env = TextWorldExpress("coin")
    step = env.reset(2)
    while not step.done:
        step = env.step(str(env.expert()))
    assert step.success is True
    env.reset(2)
    env.step("jump")
    assert env.expert() is None


@using("textworld")
def test_textworld_errors_leave_the_state_and_count_as_turns(library: str, java: None) -> None:
    env = TextWorldExpress("coin", max_turns=3, list_actions=False, look=True)
    first, fly, nothing, last = play(env, 0, ["fly", " ", "move east"])
    assert (fly.action_error, nothing.action_error, last.action_error) == ("illegal", "malformed", None)
    assert fly.state == nothing.state == first.state and fly.reward == nothing.reward == 0
    assert env.expert() == "take coin"
    assert (last.done, last.truncated, last.success) == (True, True, False)
    assert last.observation == "Room 1.\n\nNothing."
    lost = play(env, 0, ["jump"])[-1]
    assert (lost.reward, lost.done, lost.success, lost.truncated) == (-1.0, True, False, False)


@using("textworld")
def test_textworld_seeds_are_games_of_the_fold(library: str, java: None) -> None:
    train, test = TextWorldExpress("coin"), TextWorldExpress("coin", fold="test")
    assert train.content(0) == train.content(3) != train.content(1)
    assert train.content(0) != test.content(0) and test.content(1).endswith("/21")
    assert train.reset(0) == train.reset(3)


@using("textworld")
def test_sorting_has_a_java_process_of_its_own_which_is_reused(library: str, java: None) -> None:
    """`sorting` games of one Java process would share objects; other games share the process."""
    for game in ("coin", "twc"):
        TextWorldExpress(game)
    assert fake_libraries.TextWorldExpressEnv.started == 1
    first, second = TextWorldExpress("sorting"), TextWorldExpress("sorting")
    assert fake_libraries.TextWorldExpressEnv.started == 3
    first.close()
    TextWorldExpress("sorting")
    assert fake_libraries.TextWorldExpressEnv.started == 3
    second.close()


@using("textworld")
def test_textworld_refuses(library: str, java: None, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"id": "coins"}, "did you mean 'coin'"),
        ({"id": "coin", "fold": "tests"}, "fold is one of"),
        ({"id": "coin", "params": "rooms=99"}, "Too many rooms"),
        ({"id": "coin", "max_turns": 0}, "max_turns must be at least 1"),
    )
    for wrong, message in refused:
        with pytest.raises(AdapterError, match=message) as caught:
            TextWorldExpress(**wrong)
        assert "\n" not in str(caught.value)
    textworld_module._shared_process.cache_clear()
    monkeypatch.setattr(textworld_module.shutil, "which", lambda name: None)
    with pytest.raises(AdapterError, match="no `java` on PATH"):
        TextWorldExpress("coin")


@pytest.mark.parametrize("game", ["coin", "sorting", "simonsays"])
def test_real_textworld(game: str) -> None:
    pytest.importorskip("textworld_express", reason=REASON)
    env, other = TextWorldExpress(game), TextWorldExpress(game)
    the_expert_succeeds_twice(env, other)
    env.close()
    other.close()
