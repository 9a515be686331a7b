"""verifiers against a stand-in of the library."""

from __future__ import annotations

import sys

import pytest
from tests.environments.envs.fake_libraries import play, using

from gxpo.environments.envs.adapters import AdapterError
from gxpo.environments.envs.adapters.verifiers import Verifiers
from gxpo.parts.protocols import ToolCall


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
