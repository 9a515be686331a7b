"""Match messages of clients with recorded ones, and prepare them for the model's chat format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.models.chat.tools import structured
from gxpo.parts.protocols import Chat, Message, Reply, ToolCall


def identity(message: Message) -> str:
    """What two messages have in common where one is the other sent back by a client.

    Clients drop ids of calls and thinking, write arguments anew, and strip what the policy said.
    """
    role, content = message["role"], message["content"]
    if role != "assistant":
        return json.dumps([role, content, message.get("tool_call_id")], ensure_ascii=False)
    calls = [[c["name"], c["arguments"]] for c in message.get("tool_calls", ())]
    return json.dumps([role, content.strip(), calls], ensure_ascii=False, sort_keys=True)


def beginnings(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """A digest of the tools and of the first i + 1 messages, for each i."""
    running = hashlib.blake2b(json.dumps(list(tools), sort_keys=True).encode(), digest_size=16)
    out = []
    for message in messages:
        text = identity(message).encode("utf-8", "surrogatepass")
        running.update(len(text).to_bytes(8, "big") + text)
        out.append(running.digest())
    return out


def shown(messages: Sequence[Message], chat: Chat) -> list[Message]:
    """The messages as the chat format takes them: calls that a client wrote are text where the format has no place for
    them, and what the system says is the user's where it has no such role."""
    out: list[Message] = []
    facts = getattr(chat, "facts", None)
    for message in messages:
        calls = [ToolCall(c["name"], c["arguments"], c["id"]) for c in message.get("tool_calls", ())]
        if calls and getattr(chat, "tools_format", "tags") == "tags":
            tags = (f"<tool>{c.name}({json.dumps(dict(c.arguments), ensure_ascii=False)})</tool>" for c in calls)
            message = {"role": "assistant", "content": "\n".join([message["content"], *tags]).strip()}
        elif calls:
            message = {**message, "tool_calls": structured(calls, bool(facts and facts.arguments_as_json))}
        out.append(message)
    if getattr(facts, "system", True):
        return out
    said = "\n\n".join(m["content"] for m in out if m["role"] == "system")
    rest = [m for m in out if m["role"] != "system"]
    for i, message in enumerate(rest):
        if said and message["role"] == "user":
            return [*rest[:i], {**message, "content": f"{said}\n\n{message['content']}"}, *rest[i + 1 :]]
    return [{"role": "user", "content": said}, *rest] if said else rest


def answer(reply: Reply, written: str, stop: Sequence[str], parse: bool) -> Message:
    """The policy's action as the message that its client gets, up to the first stop text.

    written  the whole action as text: what the client gets where calls are not read, or can't be
    """
    calls = [c for c in reply.calls if c.error is None]
    readable = parse and len(calls) == len(reply.calls)
    content = reply.content if readable or not reply.calls else written
    message: dict[str, Any] = {"role": "assistant", "content": until(content, stop)}
    if parse and calls:
        message["tool_calls"] = [{"id": c.id or "", "name": c.name, "arguments": dict(c.arguments)} for c in calls]
    if reply.reasoning is not None:
        message["reasoning"] = reply.reasoning
    return message


def until(text: str, stop: Sequence[str]) -> str:
    """The text before the first of the stop texts.

    >>> until("a = 1; b = 2", [";", "b"])
    'a = 1'
    """
    places = [place for s in stop if (place := text.find(s)) >= 0]
    return text[: min(places)] if places else text
