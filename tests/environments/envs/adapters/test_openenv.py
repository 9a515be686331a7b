"""OpenEnv against a stand-in of its WebSocket and a server of its schema."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from tests.environments.envs import fake_libraries
from tests.environments.envs.fake_libraries import play, using

from gxpo.environments.envs.adapters import AdapterError
from gxpo.environments.envs.adapters.openenv import OpenEnv


@pytest.fixture
def address() -> Iterator[str]:
    """Where a server tells the schema of its actions."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.path == "/schema"
            self.send_response(200 if is_known else 404)
            self.end_headers()
            fields = {"by": {"type": "integer"}, "metadata": {"type": "object"}}
            self.wfile.write(json.dumps({"action": {"properties": fields}}).encode() if is_known else b"")

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
    full_open_env = OpenEnv(address + "/")
    assert full_open_env.reset(0).observation == "count: 0\nnote: n" and full_open_env.reset(0).state is None
    full_open_env.close()


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
