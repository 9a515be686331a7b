"""OpenEnv environments (openenv-core) over their WebSocket: one connection is one session.

The server's plain HTTP endpoints `/reset` and `/step` make a new world for every request and so can't play an episode;
of HTTP only `/schema` is used, to check the action. The messages are few and plain JSON, so the client's side needs
`websockets` alone and not openenv-core, whose import takes seconds and brings a server's packages.
"""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from gxpo.base.errors import did_you_mean, need
from gxpo.environments.envs.actions import action_text
from gxpo.environments.envs.adapters import AdapterError, digest
from gxpo.parts.protocols import TimeStep

LOOPBACK = ("localhost", "127.0.0.1", "::1")  # never through a proxy
LARGEST = 100 * 2**20  # bytes of a message: observations may hold whole pages
READ = {"integer": int, "number": float, "string": str}  # what a text is turned into, by the schema's type


class _Refused(AdapterError):
    """The server answered with an error: its `code`, and `why` in its words."""

    code = ""
    why = ""


@dataclass
class OpenEnv:
    """An environment on an OpenEnv server. Deterministic only if its `reset` takes a `seed` and uses it: a server
    silently drops arguments that its environment does not know.

    id               address of the server, such as "http://127.0.0.1:8000"
    action_key       field of the server's action that gets the text; "" takes it from the schema where there is one
                     field. "*": the text is a JSON object with all fields
    observation_key  field of the observation that the policy reads; "" is all of them, a line each
    state_keys       fields of the server's state that make up the state id; without any it is not known. The fields
                     `episode_id` and `step_count` never repeat, so they would make every state another one
    success_at       the sum of rewards from which an episode is a success; `success_key` names a field of the last
                     observation that says so itself
    max_turns        actions an episode may have
    instructions     text before the first observation
    extra            further arguments of the world's `reset`
    connect_timeout, timeout  seconds to wait for the connection, and for each answer
    """

    id: str
    action_key: str = ""
    observation_key: str = ""
    state_keys: tuple[str, ...] = ()
    success_key: str = ""
    success_at: float = 1.0
    max_turns: int = 50
    instructions: str = "Each turn, reply with one action between <action> and </action>."
    extra: dict[str, Any] = field(default_factory=dict)
    connect_timeout: float = 5.0
    timeout: float = 30.0

    def __post_init__(self) -> None:
        self.id = self.id.rstrip("/")
        if urlsplit(self.id).scheme not in ("http", "https"):
            raise AdapterError(f"openenv: {self.id!r} is no address such as http://127.0.0.1:8000")
        if self.max_turns < 1 or not self.connect_timeout > 0 or not self.timeout > 0:
            raise AdapterError(f"openenv:{self.id}: max_turns and the timeouts must be above 0")
        need("websockets.sync.client", "openenv")
        self._socket: Any = None
        self._read = str
        schema = self._schema()
        fields = {k: v for k, v in schema.get("properties", {}).items() if k != "metadata"}
        if not self.action_key:
            if len(fields) != 1:
                raise AdapterError(f"openenv:{self.id}: action_key is one of {sorted(fields)}, or '*' for JSON")
            self.action_key = next(iter(fields))
        if self.action_key != "*":
            if self.action_key not in fields:
                hint = did_you_mean(self.action_key, fields) or f"; it has {sorted(fields)}"
                raise AdapterError(f"openenv:{self.id}: its action has no field {self.action_key!r}{hint}")
            self._read = READ.get(fields[self.action_key].get("type", "string"), json.loads)

    def reset(self, seed: int) -> TimeStep:
        if self._socket is None:
            self._connect()
        self._turns, self._sum = 0, 0.0
        answer = self._ask("reset", {"seed": seed, **self.extra})
        self._new = False
        return TimeStep(self._words(answer.get("observation", {})), self._state())

    def step(self, action: str) -> TimeStep:
        self._turns += 1
        out = self._turns >= self.max_turns
        try:
            payload = self._action(action_text(action))
        except ValueError as error:
            return self._refuse(f"This is no action: {_line(error)}.", out)
        try:
            answer = self._ask("step", payload)
        except _Refused as error:
            if error.code != "VALIDATION_ERROR":
                raise
            return self._refuse(f"The action is not accepted: {error.why}", out)
        reward = None if answer.get("reward") is None else float(answer["reward"])
        self._sum += reward or 0.0
        done, observation = bool(answer.get("done")), answer.get("observation", {})
        success = self._verdict(observation) if done or out else None
        return TimeStep(self._words(observation), self._state(), reward, done or out, success, None, out and not done)

    def close(self) -> None:
        if self._socket is not None:
            socket, self._socket = self._socket, None
            with contextlib.suppress(Exception):  # the session may be over already
                socket.send(json.dumps({"type": "close"}))
            socket.close()

    def _connect(self) -> None:
        client = need("websockets.sync.client", "openenv")
        direct = {"proxy": None} if urlsplit(self.id).hostname in LOOPBACK else {}
        try:
            self._socket = client.connect(
                f"ws{self.id.removeprefix('http')}/ws", open_timeout=self.connect_timeout, max_size=LARGEST, **direct
            )
        except Exception as error:  # the network's, or of the websockets library
            raise self._absent(error) from error
        self._new = True

    def _ask(self, what: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """An answer of the server. A connection that has failed is not used again."""
        try:
            self._socket.send(json.dumps({"type": what} if data is None else {"type": what, "data": data}))
            answer = json.loads(self._socket.recv(timeout=self.timeout))
            told = dict(answer.get("data") or {})
        except TimeoutError as error:
            self.close()
            raise AdapterError(f"openenv:{self.id}: no answer to {what} within {self.timeout:g} s") from error
        except Exception as error:  # of the websockets library, or no JSON
            self.close()
            if self._new:  # a server without a free session says so or closes, whichever comes first
                raise self._full(error) from error
            raise AdapterError(f"openenv:{self.id}: the connection broke at {what} ({_line(error)})") from error
        if answer.get("type") != "error":
            return told
        refused = _Refused(f"openenv:{self.id}: {what} failed: {_line(told.get('message', ''))}")
        refused.code, refused.why = str(told.get("code", "")), _line(told.get("message", ""))
        if refused.code == "CAPACITY_REACHED":
            self.close()
            raise self._full(refused)
        raise refused

    def _schema(self) -> Mapping[str, Any]:
        direct = [urllib.request.ProxyHandler({})] if urlsplit(self.id).hostname in LOOPBACK else []
        opener = urllib.request.build_opener(*direct)
        try:
            with opener.open(f"{self.id}/schema", timeout=self.connect_timeout) as answer:
                return json.load(answer)["action"]
        except urllib.error.HTTPError as error:
            raise AdapterError(f"openenv:{self.id} answers {error.code} to /schema: no OpenEnv server?") from error
        except OSError as error:
            raise self._absent(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise AdapterError(f"openenv:{self.id}: what it says at /schema is no schema of OpenEnv") from error

    def _full(self, error: BaseException) -> AdapterError:
        return AdapterError(
            f"openenv:{self.id} closed the new session ({_line(error)}): it has none left? Raise its "
            "max_concurrent_envs, or run fewer episodes at once"
        )

    def _absent(self, error: BaseException) -> AdapterError:
        return AdapterError(
            f"openenv: no server answers at {self.id} within {self.connect_timeout:g} s ({_line(error)})"
        )

    def _action(self, text: str) -> dict[str, Any]:
        if not text:
            raise ValueError("it is empty")
        if self.action_key != "*":
            return {self.action_key: self._read(text)}
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("it is no JSON object")
        return found

    def _refuse(self, text: str, out: bool) -> TimeStep:
        return TimeStep(text, self._state(), None, out, self._verdict({}) if out else None, "malformed", out)

    def _verdict(self, observation: Mapping[str, Any]) -> bool:
        return bool(observation.get(self.success_key)) if self.success_key else self._sum >= self.success_at

    def _words(self, observation: Mapping[str, Any]) -> str:
        if not self.observation_key:
            return "\n".join(f"{key}: {_text(value)}" for key, value in observation.items())
        if self.observation_key not in observation:
            raise AdapterError(
                f"openenv:{self.id}: the observation has no {self.observation_key!r}; it has {sorted(observation)}"
            )
        return _text(observation[self.observation_key])

    def _state(self) -> str | None:
        if not self.state_keys:
            return None
        state = self._ask("state")
        missing = [key for key in self.state_keys if key not in state]
        if missing:
            raise AdapterError(f"openenv:{self.id}: the state has no {', '.join(missing)}; it has {sorted(state)}")
        return digest([(key, _text(state[key])) for key in self.state_keys])


def _line(error: object) -> str:
    return " ".join(str(error).split())[:300]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
