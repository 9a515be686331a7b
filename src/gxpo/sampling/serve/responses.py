"""OpenAI's Responses API (`/v1/responses`): its bodies as calls of a chat, and replies in its format."""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gxpo.sampling.serve import request
from gxpo.sampling.serve.history import Choice
from gxpo.sampling.serve.outcome import short_repr
from gxpo.sampling.serve.request import CallRequest, Refused

# The chat parameter that each parameter is; those of the same name are passed on as they are.
RENAMED = {"max_output_tokens": "max_completion_tokens"}
SAME = frozenset(
    {
        *("model", "metadata", "stream", "temperature", "top_p", "top_logprobs", "user", "store", "service_tier"),
        *("parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
    }
)
READ = frozenset({"input", "instructions", "tools", "tool_choice", "text", "include", "reasoning", "stream_options"})
# Values with no meaning here; any other needs state or tools of OpenAI's servers.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "truncation": ("disabled",),
    "max_tool_calls": (),
    "previous_response_id": (),
    "conversation": (),
    "prompt": (),
}
WHY = {
    "previous_response_id": "send the whole conversation in input: replies are not kept between calls",
    "conversation": "send the whole conversation in input: replies are not kept between calls",
}
# What a response repeats of its request
ECHOED = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "text", "tool_choice", "tools")
INCLUDED = {"reasoning.encrypted_content", "message.output_text.logprobs"}


def read(body: Any) -> CallRequest:
    """Parse a body of `/v1/responses` into a call; `Refused` (400) names the parameter and what to change."""
    if not isinstance(body, Mapping):
        raise Refused("the body is not a JSON object")
    fields = {name: value for name, value in body.items() if value is not None}
    _check_names(fields)
    chat = {RENAMED.get(name, name): value for name, value in fields.items() if name in SAME or name in RENAMED}
    chat["messages"] = [*_instructions(fields), *_messages(fields["input"])]
    if "tools" in fields:
        chat["tools"] = _tools(fields["tools"])
    choice = fields.get("tool_choice", "auto")
    # a named function stands beside its type here
    chat["tool_choice"] = {**choice, "function": choice} if isinstance(choice, Mapping) else choice
    included = fields.get("include", [])
    if not isinstance(included, list) or not set(map(str, included)) <= INCLUDED:
        raise Refused(f"include is a list of {' and '.join(sorted(INCLUDED))}", param="include")
    chat["logprobs"] = "message.output_text.logprobs" in included or "top_logprobs" in fields
    text = fields.get("text", {})
    if not isinstance(text, Mapping) or not set(text) <= {"format", "verbosity"}:
        raise Refused("text is an object with format and verbosity", param="text")
    chat["response_format"] = text.get("format")
    return dataclasses.replace(request.read(chat, chat=True), echo={k: fields[k] for k in ECHOED if k in fields})


def _check_names(fields: Mapping[str, Any]) -> None:
    """Refuse unknown parameters, and values that refer to state on OpenAI's servers."""
    for name, value in fields.items():
        if name in NEUTRAL and not any(value == x and type(value) is type(x) for x in NEUTRAL[name]):
            remedy = WHY.get(name, "leave it out")
            raise Refused(f"{name} is not supported here: {remedy}", param=name, code="unsupported_parameter")
        if name not in SAME and name not in RENAMED and name not in READ and name not in NEUTRAL:
            short = name[: request.LONGEST_NAME]
            raise Refused(f"unknown parameter {short!r}: leave it out", param=short, code="unknown_parameter")
    if "input" not in fields:
        raise Refused("'input' is missing", param="input", code="missing_required_parameter")


# ---------------------------------------------------------------- the conversation
def _instructions(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = fields.get("instructions")
    if text is not None and not isinstance(text, str):
        raise Refused("instructions is a text", param="instructions")
    return [] if text is None else [{"role": "system", "content": text}]


def _messages(value: Any) -> list[dict[str, Any]]:
    """Convert `input` to messages of a chat; the assistant's text and the calls after it are one message again."""
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not 0 < len(items) <= request.MESSAGES:
        raise Refused(f"input is a text or a list of 1 to {request.MESSAGES} items", param="input")
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(items):
        path, kind = f"input[{i}]", item.get("type", "message") if isinstance(item, Mapping) else None
        if kind == "reasoning":  # the policy's own thoughts, which the chat format keeps or drops by its rules
            continue
        if kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = _parts(item.get("output"), path)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind == "message":
            messages.append({"role": item.get("role"), "content": _parts(item.get("content"), path)})
        else:
            raise Refused(f"{path} has the type {short_repr(kind)}, which can't be read here", param=path)
    return messages


def _parts(value: Any, path: str) -> Any:
    """Parts of a content; a refusal that the policy is said to have made is text, too."""
    if not isinstance(value, list):
        return value
    return [{**p, "text": p.get("text", p.get("refusal"))} if isinstance(p, Mapping) else p for p in value]


def _tools(value: Any) -> list[Any]:
    """Convert functions to the form of chats; tools that OpenAI's servers run are refused by name."""
    if not isinstance(value, list):
        raise Refused("tools is a list", param="tools")
    tools = []
    for i, tool in enumerate(value):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if kind != "function":
            raise Refused(
                f"tools[{i}] has the type {short_repr(kind)}: only functions that the client runs", param="tools"
            )
        tools.append({"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}})
    return tools


# ---------------------------------------------------------------- replies
def body(call: CallRequest, choices: Sequence[Choice], decode: Any) -> dict[str, Any]:
    """Body of a response: its items are the thoughts, the text and the calls of the policy's one reply."""
    (choice,) = choices
    is_cut = choice.completion.finish == "length"
    n_prompt, n_completion = len(choice.prompt.ids), len(choice.completion.tokens)
    return {
        **_head(call, "incomplete" if is_cut else "completed"),
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": _items(call, choice, decode),
        "usage": {
            "input_tokens": n_prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": n_completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": n_prompt + n_completion,
        },
    }


def _head(call: CallRequest, status: str) -> dict[str, Any]:
    """Fields of a response that do not depend on the reply; sampling settings are the run's, not the client's."""
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": call.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
        **call.echo,
    }


def _items(call: CallRequest, choice: Choice, decode: Any) -> list[dict[str, Any]]:
    """Items of a reply."""
    from gxpo.sampling.serve.reply import token_logprobs

    message, items = choice.message or {}, []
    if (reasoning := message.get("reasoning")) is not None:
        items.append({"type": "reasoning", "id": _name("rs"), "summary": [{"type": "summary_text", "text": reasoning}]})
    calls = message.get("tool_calls", ())
    if choice.text or not calls:
        rows = token_logprobs(choice, decode) if call.logprobs else []
        part = {"type": "output_text", "text": choice.text, "annotations": [], "logprobs": rows}
        items.append(
            {"type": "message", "id": _name("msg"), "role": "assistant", "status": "completed", "content": [part]}
        )
    for each in calls:
        arguments = json.dumps(each["arguments"], ensure_ascii=False)
        items.append(
            {"type": "function_call", "id": _name("fc"), "call_id": each["id"] or _name("call"), "name": each["name"],
             "arguments": arguments, "status": "completed"}
        )  # fmt: skip
    return items


def _name(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def events(call: CallRequest, choices: Sequence[Choice], decode: Any) -> Iterator[str]:
    """Server-sent events of a response; sampling is complete by then, so each item comes in one piece."""
    response, number = body(call, choices, decode), 0
    start = {**response, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}

    def event(kind: str, **fields: Any) -> str:
        nonlocal number
        number += 1
        data = json.dumps({"type": f"response.{kind}", "sequence_number": number - 1, **fields})
        return f"event: response.{kind}\ndata: {data}\n\n"

    yield event("created", response=start)
    yield event("in_progress", response=start)
    for i, item in enumerate(response["output"]):
        at = {"output_index": i, "item_id": item["id"]}
        if item["type"] == "message":
            (part,) = item["content"]
            yield event("output_item.added", output_index=i, item={**item, "status": "in_progress", "content": []})
            inside = {**at, "content_index": 0}
            yield event("content_part.added", **inside, part={**part, "text": "", "logprobs": []})
            yield event("output_text.delta", **inside, delta=part["text"], logprobs=part["logprobs"])
            yield event("output_text.done", **inside, text=part["text"], logprobs=part["logprobs"])
            yield event("content_part.done", **inside, part=part)
        elif item["type"] == "function_call":
            yield event("output_item.added", output_index=i, item={**item, "status": "in_progress", "arguments": ""})
            yield event("function_call_arguments.delta", **at, delta=item["arguments"])
            yield event("function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
        else:
            (part,) = item["summary"]
            inside = {**at, "summary_index": 0}
            yield event("output_item.added", output_index=i, item={**item, "summary": []})
            yield event("reasoning_summary_part.added", **inside, part={**part, "text": ""})
            yield event("reasoning_summary_text.delta", **inside, delta=part["text"])
            yield event("reasoning_summary_text.done", **inside, text=part["text"])
            yield event("reasoning_summary_part.done", **inside, part=part)
        yield event("output_item.done", output_index=i, item=item)
    yield event(response["status"], response=response)
