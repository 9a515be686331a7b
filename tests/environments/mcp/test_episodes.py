"""Episodes with tools of real servers: what the policy is shown, what reaches a server, and what a failure costs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from mcp.types import Tool
from tests.environments.mcp.mcp_servers import calculator, listing, over_http

from gxpo.base.errors import ConfigError, GxpoError, MissingExtra, TaskError
from gxpo.environments import worlds
from gxpo.environments.mcp.episodes import ToolEpisodes
from gxpo.environments.mcp.settings import servers_of
from gxpo.parts.protocols import Reply, Task, TimeStep, ToolCall

FILE = str(Path(__file__).with_name("mcp_servers.py"))
TASK = Task("sum", "3+4=", "7")
ALLOWED = ["add", "root", "count", "slow", "flood", "picture"]


def episodes(entry, **settings):
    limits = {"timeout": settings.pop("timeout", 10.0), "chars": settings.pop("chars", 200)}
    return ToolEpisodes(servers_of([entry] if isinstance(entry, dict) else entry, **limits), **settings)


def results(envs, *calls, name="e"):
    """Outcome and result of each call of one reply."""
    step = envs.step({name: Reply("", calls=tuple(calls))})[name]
    assert isinstance(step, TimeStep) and not step.done
    return [(call["outcome"], call["result"]) for call in step.info["calls"]]


@pytest.fixture(scope="module")
def url():
    with over_http(calculator()) as address:
        yield address


@pytest.fixture
def envs(url):
    pool = episodes({"url": url, "allow": ALLOWED})
    pool.reset({"e": TASK})
    yield pool
    pool.close()


def test_only_allowed_tools_are_shown_and_callable(envs):
    shown = [tool["function"] for tool in envs.tools]
    assert [tool["name"] for tool in shown] == ALLOWED
    assert shown[0]["description"] == "Sum of two whole numbers."
    assert shown[0]["parameters"]["properties"]["a"]["type"] == "integer"
    (refused,) = results(envs, ToolCall("hidden"))
    assert refused == ("invalid", f"Error: there is no tool 'hidden'; the tools are {', '.join(ALLOWED)}.")


def test_an_episode_opens_with_its_prompt_and_ends_with_a_reply_without_calls(envs):
    chat = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+4="})
    first = envs.reset({"text": TASK, "chat": Task("chat", chat)})
    assert (first["text"].observation, first["chat"].observation) == ("3+4=", chat)
    step = envs.step({"text": Reply("7")})["text"]
    assert step.done and step.reward is None and step.success is None and not step.info
    with pytest.raises(ValueError, match="no episode 'text'"):
        envs.step({"text": Reply("7")})
    with pytest.raises(TaskError, match="its prompt is token ids"):
        envs.reset({"ids": Task("ids", (1, 2, 3))})


def test_results_come_in_the_order_of_the_calls(envs):
    calls = (ToolCall("add", {"a": 3, "b": 4}, "c1"), ToolCall("root", {"x": 2.25}, "c2"))
    step = envs.step({"e": Reply("", calls=calls)})["e"]
    assert step.observation == (
        {"role": "tool", "name": "add", "content": "7", "tool_call_id": "c1"},
        {"role": "tool", "name": "root", "content": "1.5", "tool_call_id": "c2"},
    )
    assert step.action_error is None and not step.done
    assert step.info["calls"][0] == {"name": "add", "arguments": {"a": 3, "b": 4}, "outcome": "ok", "result": "7"}


def test_calls_that_do_not_fit_never_reach_the_server(envs):
    before = int(results(envs, ToolCall("count"))[0][1])
    wrong = results(envs, ToolCall("count", {"x": 1}), ToolCall("add", {"a": "3", "b": 4}), ToolCall("cuont"))
    assert [kind for kind, _ in wrong] == ["invalid"] * 3
    assert wrong[1][1] == "Error: add: a: '3' is not of type 'integer'"
    assert results(envs, ToolCall("count")) == [("ok", str(before + 1))]
    many = results(envs, *[ToolCall("count")] * 20)
    assert [kind for kind, _ in many] == ["ok"] * 16 + ["invalid"] * 4


def test_an_unreadable_call_is_answered_by_a_message_of_the_user(envs):
    calls = (ToolCall("", error="the call is not JSON"), ToolCall("add", {"a": 1, "b": 1}))
    step = envs.step({"e": Reply("", calls=calls)})["e"]
    assert [(m["role"], m["content"]) for m in step.observation] == [
        ("tool", "2"), ("user", "Error: the call is not JSON"),
    ]  # fmt: skip
    assert step.action_error == "malformed"


def test_errors_of_a_tool_are_results(envs):
    ((kind, text),) = results(envs, ToolCall("root", {"x": -1}))
    assert kind == "error" and "no root of a negative number" in text
    assert results(envs, ToolCall("picture"))[0] == ("ok", "here it is\n[image/png, which is not shown]")


def test_a_huge_answer_is_cut(envs):
    ((kind, text),) = results(envs, ToolCall("flood", {"characters": 3_000_000}))
    assert kind == "ok" and len(text) == 200 and text.endswith("[cut: 3000000 characters]")


def test_a_slow_call_costs_itself_alone(url):
    envs = episodes({"url": url, "allow": ["slow", "add"]}, timeout=0.3)
    try:
        envs.reset({"a": TASK, "b": TASK})
        steps = envs.step(
            {
                "a": Reply("", calls=(ToolCall("slow", {"seconds": 1.0}),)),
                "b": Reply("", calls=(ToolCall("add", {"a": 1, "b": 2}),)),
            }
        )
        assert [steps[name].info["calls"][0]["outcome"] for name in "ab"] == ["timeout", "ok"]
        assert steps["a"].observation[0]["content"] == "Error: no answer within 0.3 s."
        assert results(envs, ToolCall("add", {"a": 5, "b": 6}), name="a") == [("ok", "11")]
        assert envs.seconds > 0.3
    finally:
        envs.close()


def test_names_that_clash_or_are_not_there_are_refused(url):
    for entries, message in (
        ([{"url": url, "allow": ["add"]}] * 2, "tool 'add' is allowed of two MCP servers"),
        ([{"url": url, "allow": ["ad"]}], "has no tool 'ad'; did you mean 'add'"),
        ([{"url": "http://127.0.0.1:9/mcp", "allow": ["add"]}], "MCP server http://127.0.0.1:9/mcp: "),
        ([{"command": ["no-such-program"], "allow": ["add"]}], "there is no program 'no-such-program'"),
        ([{"command": [sys.executable, "-c", "raise SystemExit(2)"], "allow": ["add"]}], "MCP server "),
    ):
        envs = episodes(entries)
        try:
            with pytest.raises(ConfigError, match=message):
                _ = envs.tools
        finally:
            envs.close()


def test_a_bad_schema_and_a_tool_that_changes_are_refused():
    tools = [
        Tool(name="good", description="A", input_schema={"type": "object"}),
        Tool(name="bad", input_schema={"type": "object", "properties": {"a": {"type": "nothing"}}}),
    ]
    with over_http(listing(tools)) as address:
        bad, envs = (episodes({"url": address, "allow": [name]}) for name in ("bad", "good"))
        try:
            with pytest.raises(ConfigError, match="tool 'bad' of MCP server"):
                _ = bad.tools
            envs.reset({"e": TASK})
            tools[0] = Tool(name="good", description="B", input_schema={"type": "object"})
            with pytest.raises(GxpoError, match="describes its tool 'good' otherwise"):
                envs.step({"e": Reply("", calls=(ToolCall("good"),))})
        finally:
            bad.close()
            envs.close()


def test_a_server_that_is_gone_ends_the_run_after_three_turns():
    call, kinds = ToolCall("add", {"a": 1, "b": 2}), list[str]()
    with over_http(calculator()) as address:
        envs = episodes({"url": address, "allow": ["add"]}, timeout=1.0)
        envs.reset({"e": TASK})
        assert results(envs, call) == [("ok", "3")]
    try:
        with pytest.raises(GxpoError, match="could not be started in 3 turns in a row"):
            while len(kinds) < 9:
                kinds.append(results(envs, call)[0][0])
        assert kinds[-2:] == ["unreachable"] * 2 and set(kinds) <= {"unreachable", "died", "timeout"}
    finally:
        envs.close()


def test_a_server_that_dies_costs_the_call_and_is_started_again(tmp_path):
    pids = tmp_path / "pids"
    envs = episodes({"command": [sys.executable, FILE, str(pids)], "allow": ["add", "crash", "pid"]}, timeout=20.0)
    try:
        envs.reset({"e": TASK})
        ((_, first),) = results(envs, ToolCall("pid"))
        ((kind, text),) = results(envs, ToolCall("crash"))
        assert (kind, text) == ("died", "Error: the tool's server ended before it answered.")
        (_, (_, second)) = results(envs, ToolCall("add", {"a": 2, "b": 2}), ToolCall("pid"))
        assert first != second
    finally:
        envs.close()
    started = pids.read_text().split()  # one to list the tools, one that died, one after it
    assert len(started) == 3 and started[1:] == [first, second]
    assert all(gone(int(pid)) for pid in started)


def gone(pid: int, seconds: float = 10.0) -> bool:
    """True once no process has the id any more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


def test_an_episode_can_have_a_server_of_its_own(url):
    envs = episodes({"url": url, "allow": ["count", "add"], "per_episode": True})
    try:
        assert envs.provides == ()
        envs.reset({"a": TASK, "b": TASK})
        for name in "ab":
            assert results(envs, ToolCall("add", {"a": 1, "b": 2}), name=name) == [("ok", "3")]
        assert len({id(servers[0]) for servers in envs._own.values()}) == 2
        envs.finish(["a", "b"])
        assert envs._own == {}
    finally:
        envs.close()


def test_a_fork_of_shared_servers_needs_no_replay(envs):
    assert envs.provides == ("snapshots",)
    (snapshot,) = envs.snapshot(["e"]).values()
    assert envs.restore({"fork": snapshot}) == {"fork": None}
    assert results(envs, ToolCall("add", {"a": 1, "b": 2}), name="fork") == [("ok", "3")]


def test_worlds_refuse_tools_where_tasks_are_episodes():
    servers = servers_of([{"command": ["python", "server.py"], "allow": ["add"]}], 10.0, 4000)
    with pytest.raises(ConfigError, match="'sokoban' is an environment: leave it out"):
        worlds.make("sokoban", seed=0, mcp=servers)
    world = worlds.make("arithmetic", seed=0, mcp=servers, max_turns=3)
    assert isinstance(world.envs, ToolEpisodes) and world.envs.max_turns == 3
    assert worlds.make("arithmetic", seed=0, mcp=servers).envs.max_turns == 8
    world.close()


def test_a_missing_sdk_names_its_extra(monkeypatch):
    servers = servers_of([{"command": ["python", "server.py"], "allow": ["add"]}], 10.0, 4000)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"gxpo\[mcp\]"):
        worlds.make("arithmetic", seed=0, mcp=servers)
