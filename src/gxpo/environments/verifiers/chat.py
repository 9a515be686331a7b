"""Chat loop of a seat, in the process of the run: the library's contract of a harness without a program for each turn.

It does what the library's `null` program does: it calls the model, runs the tools that a reply calls on the task's MCP
servers, and ends with a reply without calls. Every model call goes through the library's interception server, so its
hooks, limits and stop conditions hold, and its trace is the record.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import ModuleType
from typing import Any

from gxpo.base.errors import need

ID = "gxpo_chat"  # of the harness: the library imports a module of this name
CONNECT_SECONDS = 60.0
OVERFLOW = "context_length_exceeded"


def config(base: Any = None) -> Any:
    """Configuration of this harness, with the settings of `base`, a harness that it takes the place of."""
    kind = need("verifiers.v1.configs.harness", "verifiers").HarnessConfig
    fields = {} if base is None else {k: v for k, v in base.model_dump().items() if k in kind.model_fields}
    return kind.model_validate({**fields, "id": ID})


@functools.cache
def register() -> None:
    """Make the harness known to the library, which finds one by the name of a module."""
    module = ModuleType(ID)
    harness = _harness()
    module.__all__ = [harness.__name__]  # type: ignore[attr-defined]
    setattr(module, harness.__name__, harness)
    sys.modules[ID] = module


def _harness() -> type:
    vf = need("verifiers.v1", "verifiers")
    result = need("verifiers.v1.runtimes", "verifiers").ProgramResult

    class Chat(vf.Harness[vf.HarnessConfig]):
        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        SUPPORTS_TOOL_INTERCEPTION = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: Mapping[str, str],
            data: Any,
            tool_interception_url: str | None = None,
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            loop = _Loop(ctx.model, trace, endpoint, secret, tool_interception_url)
            await loop.run(_messages(system, prompt), mcp_urls, self.config.tool_timeout)
            return result(exit_code=0, stdout="", stderr="")

    return Chat


def _messages(system: str | None, prompt: Any) -> list[dict[str, Any]]:
    """Messages that open a conversation, in the form of the API."""
    to_wire = need("verifiers.v1.dialects.chat", "verifiers").message_to_wire
    opening = [{"role": "system", "content": system}] if system else []
    if isinstance(prompt, str):
        return [*opening, {"role": "user", "content": prompt}]
    return [*opening, *(to_wire(message) for message in prompt or ())]


class _Loop:
    """Conversation of a seat up to a reply that calls no tool."""

    def __init__(self, model: str, trace: Any, endpoint: str, secret: str, gate: str | None) -> None:
        self._model, self._trace, self._gate = model, trace, gate
        self._url, self._headers = f"{endpoint}/chat/completions", {"Authorization": f"Bearer {secret}"}

    async def run(self, messages: list[dict[str, Any]], mcp_urls: Mapping[str, str], tool_seconds: float) -> None:
        aiohttp = need("aiohttp", "verifiers")
        mcp = need("verifiers.v1.harnesses.utils.mcp", "verifiers")
        bounded = need("verifiers.v1.harnesses.utils.compaction", "verifiers").bound_tool_message
        async with AsyncExitStack() as stack:
            # a reply takes as long as the run's other episodes let it wait: the rollout has its own limits
            self._http = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS))
            )
            tools, dispatch, servers = [], {}, {}
            if mcp_urls:
                specs = {name: {"url": url, "timeout": tool_seconds} for name, url in mcp_urls.items()}
                tools, dispatch, servers = await mcp.connect_mcp({"mcpServers": specs}, stack)
            while (reply := await self._reply(messages, tools)) is not None:
                messages.append(reply)
                if not reply.get("tool_calls"):
                    return
                for call in reply["tool_calls"]:
                    messages.append(bounded(await self._result(call, mcp, dispatch, servers)))

    async def _reply(self, messages: Sequence[Any], tools: Sequence[Any]) -> dict[str, Any] | None:
        """Next message of the model; None where the library, or the length of the context, ends the conversation."""
        body = {"model": self._model, "messages": list(messages), **({"tools": list(tools)} if tools else {})}
        async with self._http.post(self._url, json=body, headers=self._headers) as response:
            text = await response.text()
        if response.status < 400:
            message = json.loads(text)["choices"][0]["message"]
            return {key: value for key, value in message.items() if value is not None}
        # a stop condition refuses the next call: this is how the library ends a loop
        if self._trace.stop_condition is not None or OVERFLOW in text:
            return None
        raise RuntimeError(f"the model's endpoint answered {response.status}: {text[:500]}")

    async def _result(self, call: Mapping[str, Any], mcp: Any, dispatch: Any, servers: Any) -> dict[str, Any]:
        """Answer to a call of a tool; a wrong call gets an error to read, as from the library's own program."""
        name, text = call["function"]["name"], call["function"].get("arguments") or "{}"
        result = {"role": "tool", "tool_call_id": call["id"], "name": name}
        try:
            arguments = json.loads(text)
        except ValueError as error:
            arguments, content = text, f"error: the arguments are not JSON ({error}); send the call again"
        else:
            is_mapping, is_known = isinstance(arguments, dict), name in dispatch
            content = None if is_mapping and is_known else f"error: there is no tool {name!r}"
            content = content if is_mapping else "error: the arguments have to be a JSON object; send the call again"
        # hooks of the environment may deny a call before it is run, and give its result
        if self._gate is not None:
            body = {"tool_call_id": call["id"], "name": name, "arguments": arguments}
            async with self._http.post(self._gate, json=body, headers=self._headers) as response:
                response.raise_for_status()
                decision = await response.json()
            if decision["action"] == "deny":
                return decision["message"]
            if decision["action"] == "stop":
                raise RuntimeError(decision["reason"])
        if content is None:
            content = await mcp.call_mcp(servers, dispatch, name, arguments)
        return {**result, "content": content}
