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
    """Error that the server answered with: its `code`, and its message `why`."""

    code = ""
    message = ""


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
        self._parse = str
        # the schema tells the only field, a misspelled one, and the type to convert the text to
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
            self._parse = READ.get(fields[self.action_key].get("type", "string"), json.loads)

    def reset(self, seed: int) -> TimeStep:
        if self._socket is None:
            self._connect()
        self._turns, self._sum = 0, 0.0
        answer = self._ask("reset", {"seed": seed, **self.extra})
        self._is_new_session = False
        return TimeStep(self._observation_text(answer.get("observation", {})), self._state())

    def step(self, action: str) -> TimeStep:
        self._turns += 1
        out_of_turns = self._turns >= self.max_turns
        try:
            payload = self._action(action_text(action))
        # an action that can't be sent costs a turn, and the server never sees it
        except ValueError as error:
            return self._refuse(f"This is no action: {_line(error)}.", out_of_turns)
        try:
            answer = self._ask("step", payload)
        except _Refused as error:
            # the policy's fault and not the server's: anything else ends the episode
            if error.code != "VALIDATION_ERROR":
                raise
            return self._refuse(f"The action is not accepted: {error.message}", out_of_turns)
        reward = None if answer.get("reward") is None else float(answer["reward"])
        self._sum += reward or 0.0
        done, observation = bool(answer.get("done")), answer.get("observation", {})
        success = self._verdict(observation) if done or out_of_turns else None
        return TimeStep(
            self._observation_text(observation),
            self._state(),
            reward,
            done or out_of_turns,
            success,
            None,
            out_of_turns and not done,
        )

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
            raise self._no_server_error(error) from error
        self._is_new_session = True

    def _ask(self, message_type: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a message and return the answer's data; a connection that has failed is not used again."""
        try:
            self._socket.send(
                json.dumps({"type": message_type} if data is None else {"type": message_type, "data": data})
            )
            answer = json.loads(self._socket.recv(timeout=self.timeout))
            payload = dict(answer.get("data") or {})
        except TimeoutError as error:
            self.close()
            raise AdapterError(f"openenv:{self.id}: no answer to {message_type} within {self.timeout:g} s") from error
        except Exception as error:  # of the websockets library, or no JSON
            self.close()
            if self._is_new_session:  # a server without a free session says so or closes, whichever comes first
                raise self._no_session_error(error) from error
            raise AdapterError(f"openenv:{self.id}: the connection broke at {message_type} ({_line(error)})") from error
        if answer.get("type") != "error":
            return payload
        refusal = _Refused(f"openenv:{self.id}: {message_type} failed: {_line(payload.get('message', ''))}")
        refusal.code, refusal.message = str(payload.get("code", "")), _line(payload.get("message", ""))
        if refusal.code == "CAPACITY_REACHED":
            self.close()
            raise self._no_session_error(refusal)
        raise refusal

    def _schema(self) -> Mapping[str, Any]:
        """Schema of the server's action."""
        # a proxy of the environment's variables does not reach this machine's own servers
        direct = [urllib.request.ProxyHandler({})] if urlsplit(self.id).hostname in LOOPBACK else []
        opener = urllib.request.build_opener(*direct)
        try:
            with opener.open(f"{self.id}/schema", timeout=self.connect_timeout) as answer:
                return json.load(answer)["action"]
        except urllib.error.HTTPError as error:
            raise AdapterError(f"openenv:{self.id} answers {error.code} to /schema: no OpenEnv server?") from error
        except OSError as error:
            raise self._no_server_error(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise AdapterError(f"openenv:{self.id}: its answer at /schema is no schema of OpenEnv") from error

    def _no_session_error(self, error: BaseException) -> AdapterError:
        return AdapterError(
            f"openenv:{self.id} closed the new session ({_line(error)}): it has none left? Raise its "
            "max_concurrent_envs, or run fewer episodes at once"
        )

    def _no_server_error(self, error: BaseException) -> AdapterError:
        return AdapterError(
            f"openenv: no server answers at {self.id} within {self.connect_timeout:g} s ({_line(error)})"
        )

    def _action(self, text: str) -> dict[str, Any]:
        if not text:
            raise ValueError("it is empty")
        if self.action_key != "*":
            return {self.action_key: self._parse(text)}
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("it is no JSON object")
        return fields

    def _refuse(self, text: str, out_of_turns: bool) -> TimeStep:
        return TimeStep(
            text,
            self._state(),
            None,
            out_of_turns,
            self._verdict({}) if out_of_turns else None,
            "malformed",
            out_of_turns,
        )

    def _verdict(self, observation: Mapping[str, Any]) -> bool:
        return bool(observation.get(self.success_key)) if self.success_key else self._sum >= self.success_at

    def _observation_text(self, observation: Mapping[str, Any]) -> str:
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
        missing_keys = [key for key in self.state_keys if key not in state]
        if missing_keys:
            raise AdapterError(f"openenv:{self.id}: the state has no {', '.join(missing_keys)}; it has {sorted(state)}")
        return digest([(key, _text(state[key])) for key in self.state_keys])


def _line(error: object) -> str:
    return " ".join(str(error).split())[:300]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
