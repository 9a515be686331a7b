"""Adapters against small stand-ins of their libraries, and, where they are installed, against the real ones.

The real ones do not agree on their requirements, so most machines have few of them or none:
scripts/checks/check_adapters.py installs each in an environment of its own and plays it. Here a missing one is
skipped for that reason.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest
from tests.environments.envs import fake_libraries

from gxpo.base.errors import MissingExtra
from gxpo.environments import envs
from gxpo.environments.envs.adapters import AdapterError
from gxpo.environments.envs.adapters import textworld as textworld_module
from gxpo.environments.envs.adapters.minigrid import MiniGrid, describe
from gxpo.environments.envs.adapters.openenv import OpenEnv
from gxpo.environments.envs.adapters.textarena import TextArena, listed_moves
from gxpo.environments.envs.adapters.textworld import TextWorldExpress
from gxpo.environments.envs.adapters.verifiers import Verifiers
from gxpo.parts.protocols import TimeStep, ToolCall

MODULES = ("minigrid", "openenv", "textarena", "textworld", "verifiers")


@pytest.fixture
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in named by the test's parameter, in the place of the library."""
    for name, module in getattr(fake_libraries, request.param)().items():
        monkeypatch.setitem(sys.modules, name, module)
    return request.param


def using(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("library", [name], indirect=True)


def play(env: Any, seed: int, actions: list[str]) -> list[TimeStep]:
    return [env.reset(seed), *(env.step(action) for action in actions)]


# All of them.
def adapter(kind: str) -> type[Any]:
    """The class that a name such as "minigrid:ID" stands for."""
    module, _, name = envs.ADAPTERS[kind].partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("kind", "id", "missing"),
    [
        ("textworld", "coin", "textworld_express"),
        ("minigrid", "MiniGrid-Empty-5x5-v0", "gymnasium"),
        ("textarena", "TicTacToe", "textarena"),
        ("verifiers", "gsm8k", "verifiers"),
        ("openenv", "http://127.0.0.1:1", "websockets"),
    ],
)
def test_without_the_library_the_extra_is_named(kind: str, id: str, missing: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    textworld_module._shared.cache_clear()
    with pytest.raises(MissingExtra, match=rf"gxpo\[{kind}\]"):
        adapter(kind)(id)


def test_importing_them_loads_neither_torch_nor_a_library() -> None:
    code = (
        "import sys\n"
        f"from gxpo.environments.envs.adapters import {', '.join(sorted(MODULES))}\n"
        "unwanted = {'torch', 'textworld_express', 'gymnasium', 'textarena', 'verifiers', 'websockets'}\n"
        "found = unwanted & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# textworld
@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(textworld_module.shutil, "which", lambda name: "/usr/bin/java")
    textworld_module._shared.cache_clear()
    textworld_module._idle_processes.cache_clear()
    yield
    textworld_module._shared.cache_clear()
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
def test_textworld_expert_leads_to_the_goal_until_the_path_is_left(library: str, java: None) -> None:
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
def test_textworld_sorting_has_a_java_process_of_its_own_which_is_used_again(library: str, java: None) -> None:
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
    textworld_module._shared.cache_clear()
    monkeypatch.setattr(textworld_module.shutil, "which", lambda name: None)
    with pytest.raises(AdapterError, match="no `java` on PATH"):
        TextWorldExpress("coin")


# minigrid
NAMES = (
    dict(enumerate(["unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent"])),
    {0: "red", 1: "green"},
    {0: "open", 1: "closed", 2: "locked"},
)


def test_minigrid_view_in_words() -> None:
    """Five columns, five rows; the agent stands at column 2 of row 4 and looks towards row 0."""
    view = np.ones((5, 5, 3), np.uint8)
    view[2][4] = (5, 0, 0)  # carried: a red key
    view[2][1] = (2, 0, 0)  # a wall three ahead
    view[0][4] = (2, 0, 0)  # and one two to the left
    view[3][3] = (4, 1, 2)  # a locked green door, one ahead and one to the right
    view[2][3] = (9, 0, 0)  # lava straight ahead
    view[4][0] = (0, 0, 0)  # unseen
    assert describe(view, NAMES).splitlines() == [
        "You carry a red key.",
        "Walls, in steps: ahead 3, left 2.",
        "You see, in steps:",
        "- lava: 1 ahead",
        "- locked green door: 1 ahead, 1 to the right",
    ]
    assert describe(np.ones((3, 3, 3)), NAMES) == "You carry nothing.\nYou see nothing else."


@using("minigrid")
def test_minigrid_walks_to_the_goal(library: str) -> None:
    """From cell 0, three steps: the reward is 1 - 0.9 * 4 / 10 because one action could not be read."""
    env = MiniGrid("MiniGrid-Corridor-v0", max_turns=10)
    steps = play(env, 0, ["go forward", "hop", "<action>go forward</action>", "Go forward."])
    assert steps[0].observation == "Mission: walk to the end\nYou carry nothing.\nYou see nothing else."
    assert str(steps[1].observation).endswith("- green goal: 2 ahead")
    assert [s.action_error for s in steps] == [None, None, "malformed", None, None]
    assert steps[1].state == steps[2].state != steps[3].state
    assert steps[-1].reward == pytest.approx(0.64) and steps[-1].done and steps[-1].success is True
    assert not callable(env.expert)  # a level without instructions has none


@using("minigrid")
def test_minigrid_ends_and_is_truncated_at_max_turns(library: str) -> None:
    env = MiniGrid("MiniGrid-Corridor-v0", max_turns=2)
    for actions in (["done", "done"], ["done", "?"]):
        last = play(env, 0, actions)[-1]
        assert (last.done, last.truncated, last.success, last.reward) == (True, True, False, 0.0)


@using("minigrid")
def test_minigrid_content_leaves_the_episode_alone(library: str) -> None:
    env = MiniGrid("MiniGrid-Corridor-v0")
    env.reset(0)
    here = env.step("go forward").state
    assert env.content(0) == env.content(2) != env.content(1)
    assert env.step("drop").state == here


@using("minigrid")
def test_minigrid_by_pixels_has_the_states_of_the_text(library: str) -> None:
    seen, read = MiniGrid("MiniGrid-Corridor-v0", pixels=True), MiniGrid("MiniGrid-Corridor-v0")
    actions = ["go forward", "hop", "go forward", "go forward"]
    steps, words = play(seen, 0, actions), play(read, 0, actions)
    blind = [dataclasses.replace(s, observation="") for s in steps]
    assert blind == [dataclasses.replace(s, observation="") for s in words] and seen.content(0) == read.content(0)
    parts = [step.observation[0]["content"] for step in steps]
    assert [image["image"][:, :, 0].tolist() for image, _ in parts] == [[[n] * 64] * 64 for n in (0, 1, 1, 2, 3)]
    texts = [text["text"] for _, text in parts]
    assert texts[0] == texts[1] == "Mission: walk to the end"
    assert texts[2].startswith("'hop' is not an action.") and texts[2].endswith("\nMission: walk to the end")
    with pytest.raises(AdapterError, match="pixels must be true or false, not 'yes'"):
        MiniGrid("MiniGrid-Corridor-v0", pixels="yes")  # type: ignore[arg-type]


@using("minigrid")
def test_minigrid_refuses(library: str) -> None:
    with pytest.raises(AdapterError, match="did you mean 'MiniGrid-Corridor-v0'"):
        MiniGrid("MiniGrid-Coridor-v0")
    with pytest.raises(AdapterError, match="options"):
        MiniGrid("MiniGrid-Corridor-v0", options={"wide": 1})


# textarena
def test_listed_moves() -> None:
    assert listed_moves("Valid moves:\n[a b], [c], [c]") == ("[a b]", "[c]")
    assert listed_moves("Available moves: up, down. Use [up].") == ("[up]",)
    assert listed_moves("[4] is taken") == ()


@using("textarena")
def test_textarena_one_player_and_global_randomness(library: str) -> None:
    """The number is drawn from the global generator; others may use it in between and are not disturbed."""
    seen = []
    for noise in (1, 2):
        random.seed(noise)
        env = TextArena("HigherLower")
        steps = [env.reset(5)]
        for guess in range(10):
            random.random()
            if not steps[-1].done:
                steps.append(env.step(str(guess)))
        seen.append(steps)
    assert seen[0] == seen[1]
    last = seen[0][-1]
    assert (last.done, last.success, last.reward) == (True, True, 1.0) and "Right." in str(last.observation)
    assert [step.reward for step in seen[0][:-1]] == [None] + [0.0] * (len(seen[0]) - 2)


@using("textarena")
def test_textarena_leaves_the_global_generators_as_they_were(library: str) -> None:
    random.seed(7)
    np.random.seed(7)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]  # the legacy form
    play(TextArena("HigherLower"), 0, ["3"])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[union-attr]


@using("textarena")
def test_textarena_invalid_moves_are_illegal_and_the_second_in_a_row_loses(library: str) -> None:
    env = TextArena("HigherLower")
    _, first, empty, second = play(env, 0, ["x", "", "y"])
    assert (first.action_error, first.done) == ("illegal", False) and "invalid move: [x]" in str(first.observation)
    assert (empty.action_error, empty.done) == ("malformed", False)
    assert (second.action_error, second.done, second.success, second.reward) == ("illegal", True, False, -1.0)
    assert first.state != env.reset(0).state  # a warned player is in another state


@using("textarena")
def test_textarena_opponents(library: str) -> None:
    """Five stones: 2, then the opponent's 1, leaves 2, which the player takes and wins."""
    env = TextArena("Pile", opponent="[1]")
    first, mine, last = play(env, 0, ["2", "2"])
    assert first.observation == "5 stones. Available moves: '[1]', '[2]'"
    assert "Player 1: [1]" in str(mine.observation) and "Player 0" not in str(mine.observation)
    assert (last.done, last.success, last.reward) == (True, True, 1.0)
    lost = play(TextArena("Pile", opponent="[2]"), 0, ["2", "1"])[-1]  # 5 - 2 - 2 - 1 = 0: the last stone is ours
    assert lost.success is True
    second = TextArena("Pile", opponent="[2]", seat=1)
    begun = second.reset(0)
    assert "3 stones." in str(begun.observation) and second.legal() == ("[1]", "[2]")
    beaten = play(second, 0, ["1"])[-1]  # it takes the last two
    assert (beaten.done, beaten.success, beaten.reward) == (True, False, -1.0)


@using("textarena")
def test_textarena_random_opponent_repeats_with_its_seed(library: str) -> None:
    def told(seed: int) -> list[Any]:
        env = TextArena("Pile")
        steps = [env.reset(seed)]
        while not steps[-1].done:
            steps.append(env.step("[1]"))
        return steps

    assert told(3) == told(3)
    assert len({repr(told(seed)) for seed in range(12)}) > 1


@using("textarena")
def test_textarena_opponents_that_can_not_play_are_errors_not_wins(library: str) -> None:
    with pytest.raises(AdapterError, match="lists no moves"):
        play(TextArena("SilentPile"), 0, ["1"])
    assert not play(TextArena("SilentPile", moves=("[1]",)), 0, ["1"])[-1].done
    for seed in range(8):  # what is not possible is not said
        assert not play(TextArena("SilentPile", moves=("[7]", "[1]", "[9]")), seed, ["1"])[-1].done
    with pytest.raises(AdapterError, match="lost by an invalid move"):
        play(TextArena("Pile", opponent="[9]"), 0, ["1"])
    with pytest.raises(AdapterError, match="did you mean"):
        TextArena("Pil-v0")


@using("textarena")
def test_textarena_is_truncated_at_max_turns(library: str) -> None:
    last = play(TextArena("HigherLower", max_turns=1), 1, ["[99]"])[-1]
    assert (last.done, last.truncated, last.success) == (True, True, False)


# verifiers
@using("verifiers")
def test_verifiers_stands_still_where_the_library_asks(library: str) -> None:
    env = Verifiers("owner/some-world", max_turns=4)
    first = env.reset(4)  # row 4 mod 3
    assert first.observation == ({"role": "user", "content": "task 1"},)
    assert env.step("hello").observation == ({"role": "user", "content": "heard hello"},)
    last = env.step("stop")
    assert (last.done, last.reward, last.success, last.truncated) == (True, 1.0, True, False)
    assert last.info == {"rewards": {"messages": 4.0}, "stop": "stopped"}
    assert env.max_turns == 4 and env.content(0) == env.content(3) != env.content(1)


@using("verifiers")
def test_verifiers_tools_take_calls(library: str) -> None:
    env = Verifiers("some_world")
    assert [tool["function"]["name"] for tool in env.tools] == ["double"]
    env.reset(0)
    step = env.call("", (ToolCall("double", {"x": 2}, "a"),))
    assert step.observation == ({"role": "tool", "content": 'double {"x": 2}'},) and step.action_error is None
    assert env.call("", (ToolCall("treble", {}),)).action_error == "illegal"
    assert env.call("", (ToolCall("double", {}, error="no JSON"),)).action_error == "malformed"
    env.close()


@using("verifiers")
def test_verifiers_episodes_at_once_keep_to_themselves(library: str) -> None:
    a, b = Verifiers("some_world"), Verifiers("some_world")
    a.reset(0)
    b.reset(1)
    assert a.step("x").observation[0]["content"] == "heard x"  # type: ignore[index]
    assert b.step("y").observation[0]["content"] == "heard y"  # type: ignore[index]
    assert a.step("stop").done and not b.step("z").done
    b.close()


@using("verifiers")
def test_verifiers_limits_and_faults(library: str) -> None:
    short = play(Verifiers("some_world", max_turns=2), 0, ["a", "b"])[-1]
    assert (short.done, short.truncated, short.success, short.reward) == (True, True, False, 0.0)
    with pytest.raises(AdapterError, match=r"scoring failed.*boom"):
        play(Verifiers("some_world", args={"broken": True}), 0, ["stop"])
    with pytest.raises(AdapterError, match="rewrites what was said"):
        play(Verifiers("some_world", args={"rewrites": True}), 0, ["a"])
    with pytest.raises(AdapterError, match="can't be loaded"):
        Verifiers("some_world", args={"wrong": 1})
    with pytest.raises(AdapterError, match="no module 'nowhere'"):
        Verifiers("nowhere")


@using("verifiers")
def test_verifiers_says_which_version_has_the_classic_api(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["verifiers"], "load_environment")
    with pytest.raises(AdapterError, match=r"verifiers>=0\.1\.14,<0\.4"):
        Verifiers("some_world")


# openenv
@pytest.fixture
def address() -> Iterator[str]:
    """Where a server tells the schema of its actions."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/schema"
            self.send_response(200 if known else 404)
            self.end_headers()
            fields = {"by": {"type": "integer"}, "metadata": {"type": "object"}}
            self.wfile.write(json.dumps({"action": {"properties": fields}}).encode() if known else b"")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@using("openenv")
def test_openenv_counts_to_three(library: str, address: str) -> None:
    env = OpenEnv(address, observation_key="count", state_keys=("count",))
    steps = play(env, 1, ["1", "x", "<action>1</action>"])
    assert [s.observation for s in steps if s.action_error is None] == ["1", "2", "3"]
    assert steps[2].action_error == "malformed" and steps[1].state == steps[2].state != steps[0].state
    assert [s.reward for s in steps] == [None, 0.0, None, 1.0]
    assert (steps[-1].done, steps[-1].success) == (True, True)
    assert env.reset(1).state == steps[0].state
    env.close()
    whole = OpenEnv(address + "/")
    assert whole.reset(0).observation == "count: 0\nnote: n" and whole.reset(0).state is None
    whole.close()


@using("openenv")
def test_openenv_json_actions_and_refusals(library: str, address: str) -> None:
    env = OpenEnv(address, action_key="*", max_turns=4)
    steps = play(env, 0, ['{"by": 2}', "[2]", '{"be": 2}', '{"by": 0}'])
    assert [s.action_error for s in steps[1:]] == [None, "malformed", "malformed", None]
    assert "by: not a number" in str(steps[3].observation)
    assert (steps[4].done, steps[4].truncated, steps[4].success) == (True, True, False)
    env.close()


@using("openenv")
def test_openenv_faults_are_named(library: str, address: str) -> None:
    env = OpenEnv(address)
    env.reset(0)
    with pytest.raises(AdapterError, match="step failed: it broke"):
        env.step("-1")
    with pytest.raises(AdapterError, match=r"none left.*max_concurrent_envs"):
        OpenEnv(address).reset(0)
    with pytest.raises(AdapterError, match="no answer to step within 30 s"):
        env.step("-2")
    assert fake_libraries.Socket.open == 0
    with pytest.raises(AdapterError, match="did you mean 'by'"):
        OpenEnv(address, action_key="bye")
    with pytest.raises(AdapterError, match="has no 'text'; it has"):
        OpenEnv(address, observation_key="text").reset(0)
    with pytest.raises(AdapterError, match="answers 404"):
        OpenEnv(address + "/elsewhere")
    with pytest.raises(AdapterError, match="no address"):
        OpenEnv("localhost:8000")
    with pytest.raises(AdapterError, match="no server answers"):
        OpenEnv("http://127.0.0.1:1")


# The libraries themselves.
REASON = "optional; scripts/checks/check_adapters.py installs and plays it"


def the_expert_succeeds_twice(env: TextWorldExpress | MiniGrid, other: TextWorldExpress | MiniGrid) -> None:
    """The same seed and actions in two instances give the same, up to the expert's success."""
    for seed in range(2):
        step, same = env.reset(seed), other.reset(seed)
        while not step.done:
            assert step == same
            action = env.expert()
            assert action is not None
            step, same = env.step(action), other.step(action)
        assert step.success is True


@pytest.mark.parametrize("game", ["coin", "sorting", "simonsays"])
def test_real_textworld(game: str) -> None:
    pytest.importorskip("textworld_express", reason=REASON)
    env, other = TextWorldExpress(game), TextWorldExpress(game)
    the_expert_succeeds_twice(env, other)
    env.close()
    other.close()


@pytest.mark.parametrize("level", ["BabyAI-GoToLocal-v0", "BabyAI-PutNextLocal-v0"])
def test_real_minigrid(level: str) -> None:
    pytest.importorskip("minigrid", reason=REASON)
    the_expert_succeeds_twice(MiniGrid(level), MiniGrid(level))


def test_real_textarena() -> None:
    pytest.importorskip("textarena", reason=REASON)
    for seed in range(3):
        env, other = TextArena("TicTacToe"), TextArena("TicTacToe")
        step, same = env.reset(seed), other.reset(seed)
        while not step.done:
            assert step == same and step.state is not None
            move = env.legal()[0]
            step, same = env.step(move), other.step(move)
        assert step.reward in (-1.0, 0.0, 1.0)
