"""Anthropic's Messages API (`/v1/messages`): its bodies as calls of a chat, and replies and errors in its format."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gxpo.sampling.serve import request
from gxpo.sampling.serve.history import Choice
from gxpo.sampling.serve.outcome import short_repr
from gxpo.sampling.serve.request import CallRequest, Refused

# The chat parameter that each parameter is; `metadata.user_id` has no use here.
CHAT_NAMES = {
    **{name: name for name in ("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "metadata")},
    **{"stop_sequences": "stop", "service_tier": "service_tier"},
}
READ = frozenset({"messages", "system", "tools", "tool_choice", "thinking", "output_config", "output_format"})
ERRORS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
          429: "rate_limit_error", 503: "overloaded_error"}  # fmt: skip


def read(body: Any) -> CallRequest:
    """Parse a body of `/v1/messages` into a call; `Refused` (400) names the parameter and what to change."""
    if not isinstance(body, Mapping):
        raise Refused("the body is not a JSON object")
    fields = {name: value for name, value in body.items() if value is not None}
    for name in fields:
        if name not in CHAT_NAMES and name not in READ:
            raise Refused(f"unknown parameter {name[: request.LONGEST_NAME]!r}: leave it out")
    if "messages" not in fields:
        raise Refused("'messages' is missing")
    chat = {CHAT_NAMES[name]: value for name, value in fields.items() if name in CHAT_NAMES}
    system = _text(fields.get("system"), "system")
    messages = _messages(fields["messages"])
    chat["messages"] = [{"role": "system", "content": system}, *messages] if system else messages
    if "tools" in fields:
        chat["tools"] = _tools(fields["tools"])
    choice = fields.get("tool_choice", {"type": "auto"})
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind not in ("auto", "any", "tool", "none"):
        raise Refused('tool_choice is {"type": "auto"}, any, tool or none')
    chat["tool_choice"] = {"any": "required", "tool": {"function": choice}}.get(kind, kind)
    if choice.get("disable_parallel_tool_use") is True:
        chat["parallel_tool_calls"] = False
    chat["response_format"] = _format(fields)
    return request.read(chat, chat=True)


def _format(fields: Mapping[str, Any]) -> Any:
    """Parse the format of the reply's text: `output_config.format`, or `output_format` as the beta had it."""
    config = fields.get("output_config", {})
    if not isinstance(config, Mapping) or not set(config) <= {"format", "effort"}:
        raise Refused("output_config is an object with format and effort")
    if config.get("format") is not None and "output_format" in fields:
        raise Refused("output_config.format and output_format are both given: leave one out")
    return fields.get("output_format", config.get("format"))


# ---------------------------------------------------------------- the conversation
def _messages(value: Any) -> list[dict[str, Any]]:
    """Convert messages of content blocks to messages of a chat: each result of a tool is a message of its own."""
    if not isinstance(value, list) or not 0 < len(value) <= request.MESSAGES:
        raise Refused(f"messages is a list of 1 to {request.MESSAGES} messages")
    messages: list[dict[str, Any]] = []
    for i, message in enumerate(value):
        path = f"messages[{i}]"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ("user", "assistant"):
            raise Refused(f"{path} has no role that is known: user, assistant")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or len(blocks) > request.PARTS:
            raise Refused(f"{path}.content is a text or a list of at most {request.PARTS} blocks")
        texts, calls, results = [], [], []
        for j, block in enumerate(blocks):
            at, kind = f"{path}.content[{j}]", block.get("type") if isinstance(block, Mapping) else None
            if kind == "text":
                texts.append(_text(block.get("text"), at))
            elif kind == "tool_use" and role == "assistant":
                function = {"name": block.get("name"), "arguments": block.get("input")}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            elif kind == "tool_result" and role == "user":
                result = _text(block.get("content"), at)
                results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result})
            elif kind not in ("thinking", "redacted_thinking"):  # own thoughts, which the chat format keeps or drops
                raise Refused(f"{at} has the type {short_repr(kind)}, which can't be read here in the {role}'s message")
        messages += results
        if role == "assistant":
            entry = {"role": role, "content": "\n".join(texts)}
            messages.append({**entry, "tool_calls": calls} if calls else entry)
        elif texts or not results:
            messages.append({"role": role, "content": "\n".join(texts)})
    return messages


def _text(value: Any, path: str) -> str:
    """Parse a text, or blocks of text, which are joined by newlines."""
    if value is None or isinstance(value, str):
        return value or ""
    blocks = value if isinstance(value, list) else [value]
    for block in blocks:
        if not isinstance(block, Mapping) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise Refused(f"{path} is not a text or a list of blocks of text: only text can be read")
    return "\n".join(block["text"] for block in blocks)


def _tools(value: Any) -> list[Any]:
    """Convert tools to the form of chats; tools that Anthropic's servers run are refused by name."""
    if not isinstance(value, list):
        raise Refused("tools is a list")
    tools = []
    for i, tool in enumerate(value):
        kind = tool.get("type", "custom") if isinstance(tool, Mapping) else None
        if kind != "custom":
            raise Refused(f"tools[{i}] has the type {short_repr(kind)}: only tools that the client runs")
        function = {"name": tool.get("name"), "description": tool.get("description"),
                    "parameters": tool.get("input_schema")}  # fmt: skip
        tools.append({"type": "function", "function": {k: v for k, v in function.items() if v is not None}})
    return tools


# ---------------------------------------------------------------- replies
def body(call: CallRequest, choices: Sequence[Choice], decode: Any) -> dict[str, Any]:
    """Body of a reply: its blocks are the thoughts, the text and the calls of the policy."""
    (choice,) = choices
    message = choice.message or {}
    calls = message.get("tool_calls", ())
    blocks: list[dict[str, Any]] = []
    if (reasoning := message.get("reasoning")) is not None:
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": ""})
    if choice.text or not calls:
        blocks.append({"type": "text", "text": choice.text})
    for each in calls:
        name = each["id"] or f"toolu_{uuid.uuid4().hex}"
        blocks.append({"type": "tool_use", "id": name, "name": each["name"], "input": each["arguments"]})
    # the text that ended the reply, which the client does not get
    text = decode(choice.completion.tokens)
    stop = min((s for s in call.stop if s in text), key=text.find, default=None)
    reason = "max_tokens" if choice.completion.finish == "length" else "stop_sequence" if stop else "end_turn"
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": blocks,
        "stop_reason": "tool_use" if calls else reason,
        "stop_sequence": None if calls else stop,
        "usage": {
            "input_tokens": len(choice.prompt.ids),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": len(choice.completion.tokens),
        },
    }


def events(call: CallRequest, choices: Sequence[Choice], decode: Any) -> Iterator[str]:
    """Server-sent events of a reply; sampling is complete by then, so each block comes in one piece."""
    reply = body(call, choices, decode)

    def event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"

    message = {
        **reply,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**reply["usage"], "output_tokens": 0},
    }
    yield event("message_start", message=message)
    for i, block in enumerate(reply["content"]):
        kind = block["type"]
        if kind == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        elif kind == "thinking":
            empty, delta = {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
        else:
            arguments = json.dumps(block["input"], ensure_ascii=False)
            empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": arguments}
        yield event("content_block_start", index=i, content_block=empty)
        yield event("content_block_delta", index=i, delta=delta)
        yield event("content_block_stop", index=i)
    usage = {"output_tokens": reply["usage"]["output_tokens"]}
    yield event("message_delta", delta={k: reply[k] for k in ("stop_reason", "stop_sequence")}, usage=usage)
    yield event("message_stop")


def error(refusal: Refused) -> dict[str, Any]:
    """Body of an error."""
    kind = ERRORS.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.body()["error"]["message"]}}
