"""Environments of verifiers' classic API (0.1.14 to 0.3); those of 0.4 are played by `environments.verifiers`.

A rollout runs in the library's own loop, which stands still wherever it asks for a completion until the
policy has answered; so what an environment says, when it stops and how its rubric scores are the library's.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import need
from gxpo.base.library_logs import errors_of
from gxpo.environments.envs.adapters import AdapterError, digest
from gxpo.parts.protocols import Message, TimeStep, ToolCall


def _plain(message: Any) -> dict[str, Any]:
    """Convert a message of the library to the form of chat templates."""
    fields = dict(message) if isinstance(message, Mapping) else message.model_dump(exclude_none=True)
    calls = fields.get("tool_calls")
    if calls and "function" not in calls[0]:
        fields["tool_calls"] = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls
        ]
    return fields


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


class _Complaints(logging.Handler):
    """Collect the errors that the library logs: it logs a reward function that raises, and pays 0."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(" ".join(record.getMessage().split()))


class _Rollout:
    """One rollout of the library's loop; `prompt` is the one that waits for a completion, None once it is over."""

    def __init__(self, env: Any, row: Mapping[str, Any]):
        self._types = need("verifiers.types", "verifiers")
        self._loop = asyncio.new_event_loop()
        self._next_prompt: asyncio.Future[Any] = self._loop.create_future()
        self._next_response: asyncio.Future[Any] | None = None
        self._task = self._loop.create_task(self._run_and_score(env, dict(row)))
        self.prompt: list[dict[str, Any]] | None = None
        self._run_to_next_prompt()

    def answer(self, content: str, calls: Sequence[Any]) -> None:
        reply = self._types.ResponseMessage(
            content=content,
            tool_calls=[
                self._types.ToolCall(
                    id=call.id or f"call_{k}",
                    name=call.name,
                    arguments="" if call.error else json.dumps(dict(call.arguments)),
                )
                for k, call in enumerate(calls)
            ]
            or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        # the loop of the library continues with this answer, up to its next request or its end
        response = self._types.Response(id="", created=0, model="policy", usage=None, message=reply)
        assert self._next_response is not None
        self._next_prompt = self._loop.create_future()
        self._next_response.set_result(response)
        self._run_to_next_prompt()

    @property
    def state(self) -> Any:
        return self._task.result()

    def close(self) -> None:
        if not self._loop.is_closed():
            self._task.cancel()
            self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))
            self._loop.close()

    async def _run_and_score(self, env: Any, row: dict[str, Any]) -> Any:
        state = await env.rollout(row, self._client(), "policy", {})
        if state.get("error") is not None:
            raise AdapterError(f"the rollout failed: {state['error']!r}")
        # listen while the rubric scores: a reward that raises must not count as a reward of 0
        complaints = _Complaints()
        with errors_of("verifiers", complaints):
            await env.rubric.score_rollout(state)
        if complaints.messages:
            raise AdapterError(f"scoring failed: {complaints.messages[0]}")
        return state

    def _client(self) -> Any:
        """Stand-in for the library's model client, which waits until the policy has answered."""
        base = need("verifiers.clients", "verifiers").Client

        async def get_response(client: Any, prompt: Any, *args: Any, **kwargs: Any) -> Any:
            self._next_response = self._loop.create_future()
            self._next_prompt.set_result(prompt)
            return await self._next_response

        # abstract methods of other versions' clients, which a rollout never calls
        stubs = {name: lambda *_, **__: None for name in base.__abstractmethods__}
        return type("Policy", (base,), {**stubs, "get_response": get_response})(None)

    def _run_to_next_prompt(self) -> None:
        waits = asyncio.wait({self._task, self._next_prompt}, return_when=asyncio.FIRST_COMPLETED)
        self._loop.run_until_complete(waits)
        if self._task.done():
            self.prompt = None
            self._task.result()
        else:
            prompt = self._next_prompt.result()
            if isinstance(prompt, str):
                raise AdapterError("it asks for the completion of a text; only chats are supported")
            self.prompt = [_plain(message) for message in prompt]


@functools.lru_cache(maxsize=8)
def _classic(name: str, args: str, split: str, max_turns: int) -> tuple[Any, Any]:
    """Load an environment and its rows; episodes of a process share them, as each has a state of its own."""
    library = need("verifiers", "verifiers")
    try:
        env = library.load_environment(name, **json.loads(args))
    except (RuntimeError, TypeError, ValueError) as error:
        raise AdapterError(f"verifiers:{name} can't be loaded with args {args} ({_line(error)})") from error
    if not isinstance(env, library.MultiTurnEnv):
        raise AdapterError(f"verifiers:{name} is a {type(env).__name__}; only those that take turns are supported")
    if getattr(env, "requires_group_rollouts", False):
        raise AdapterError(f"verifiers:{name} has rewards of whole groups, which an environment can't give")
    # the smaller limit holds: -1 of the library is no limit
    if not 0 < env.max_turns <= max_turns:
        env.max_turns = max_turns
    return env, env.get_dataset() if split == "train" else env.get_eval_dataset()


@dataclass
class Verifiers:
    """An environment of the classic API from an importable module; as deterministic as that module.

    id          the module, with `load_environment`
    args        for `load_environment`
    split       "train" or "eval" rows; a seed counts modulo their number
    max_turns   actions an episode may have, where the environment does not say less
    success_at  the reward from which an episode is a success

    The reward is paid once, by the environment's rubric; its parts are in `info` of the last step. State ids are not
    known. The conversation begins with the environment's own system prompt, so there are no further instructions.
    Not supported, and refused: rewards of whole groups, completions of plain text, conversations that rewrite what
    was said before.
    """

    id: str
    args: dict[str, Any] = field(default_factory=dict)
    split: str = "train"
    max_turns: int = 10
    success_at: float = 1.0

    instructions = ""
    provides = ()

    def __post_init__(self) -> None:
        if self.split not in ("train", "eval"):
            raise AdapterError(f"verifiers:{self.id}: split is 'train' or 'eval', not {self.split!r}")
        need("verifiers", "verifiers")
        # "owner/some-world@version" of the library's hub is the module some_world
        name = self.id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise AdapterError(f"verifiers:{self.id}: no module {name!r} can be imported ({error})") from error
        self._rollout: _Rollout | None = None
        if not hasattr(module, "load_environment"):
            raise AdapterError(f"verifiers:{self.id} has no `load_environment`: task sets need verifiers 0.4 or later")
        if not hasattr(need("verifiers", "verifiers"), "load_environment"):
            raise AdapterError(
                f"verifiers:{self.id} is of the classic API, which verifiers 0.4 no longer has: "
                "pip install 'verifiers>=0.1.14,<0.4'"
            )
        args = json.dumps(self.args, sort_keys=True)
        self._env, self._rows = _classic(name, args, self.split, self.max_turns)
        self.max_turns = self._env.max_turns
        self.tools = tuple(_schema(tool) for tool in self._env.tool_defs or ())

    def reset(self, seed: int) -> TimeStep:
        self.close()
        self._rollout = _Rollout(self._env, self._rows[seed % len(self._rows)])
        if self._rollout.prompt is None:
            raise AdapterError(f"verifiers:{self.id} ended before the first action")
        self._prompt = self._rollout.prompt
        return TimeStep(tuple(self._prompt))

    def step(self, action: str) -> TimeStep:
        return self.call(action, ())

    def call(self, content: str, calls: Sequence[ToolCall]) -> TimeStep:
        assert self._rollout is not None, "reset comes first"
        self._rollout.answer(content, calls)
        tool_names = {tool["function"]["name"] for tool in self.tools}
        unknown = any(call.name not in tool_names for call in calls)
        error = "malformed" if any(call.error for call in calls) else "illegal" if unknown else None
        if self._rollout.prompt is not None:
            return TimeStep(self._new_messages(self._rollout.prompt), action_error=error)
        state = self._rollout.state
        reward = float(state["reward"])
        closing = tuple(_plain(message) for message in state.get("final_env_response") or ())
        truncated = state.get("stop_condition") == "max_turns_reached" and self.max_turns > 1
        success = reward >= self.success_at
        info = {"rewards": dict(state["metrics"] or {}), "stop": state.get("stop_condition")}
        return TimeStep(closing, None, reward, True, success, error, truncated, info)

    def content(self, seed: int) -> str:
        row = self._rows[seed % len(self._rows)]
        return digest({key: row.get(key) for key in ("prompt", "answer", "info")})

    def close(self) -> None:
        if self._rollout is not None:
            self._rollout.close()
            self._rollout = None

    def _new_messages(self, prompt: list[dict[str, Any]]) -> tuple[Message, ...]:
        """Messages that the environment has added since the last action."""
        # the first new message is the policy's own action, which the conversation has already
        before = len(self._prompt)
        if prompt[:before] != self._prompt or prompt[before]["role"] != "assistant":
            raise AdapterError(f"verifiers:{self.id} rewrites what was said before, which is not supported")
        self._prompt = prompt
        return tuple(prompt[before + 1 :])


def _schema(tool: Any) -> dict[str, Any]:
    about = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": about}
