"""Tool schemas: parameter types, and instructions for models whose template has no tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.models.chat.formats import Types
from gxpo.parts.protocols import Message, ToolCall

Schema = Mapping[str, Any]

INSTRUCTIONS = """Tools. Write calls as <tool>name({"argument": value})</tool>, then stop; answers are in <tool_result>.
"""


def function_of(tool: Schema) -> Schema:
    """Function of a tool in OpenAI's form; `ConfigError` if it names none."""
    inner = tool.get("function", tool)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise ConfigError('a tool is {"type": "function", "function": {"name": ..., "parameters": {...}}}')
    return inner


def types_of(tools: Sequence[Schema]) -> Types:
    """JSON types by tool and parameter, as far as the schemas state them."""
    out = {}
    for function in map(function_of, tools):
        properties = (function.get("parameters") or {}).get("properties") or {}
        out[function["name"]] = {k: p["type"] for k, p in properties.items() if isinstance((p or {}).get("type"), str)}
    return out


def instructions(tools: Sequence[Schema]) -> str:
    """Instructions for calling these tools, for a system message: a line for each, as a person would write it.

    `find(text: string, limit?: integer = 10): Search the notes.`; what this form can't say stays JSON Schema.
    """
    return INSTRUCTIONS + "\n".join(map(_line, map(function_of, tools)))


def _line(function: Schema) -> str:
    about = f": {function['description']}" if function.get("description") else ""
    schema = function.get("parameters") or {}
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    # keywords beside these say how arguments depend on one another, or which others there may be
    is_plain = schema.keys() <= {"type", "title", "properties", "required"} and {*required} <= properties.keys()
    if not is_plain:
        return f"- {function['name']}{about}\n  arguments: {json.dumps(schema, ensure_ascii=False)}"
    arguments = [f"{name}{'' if name in required else '?'}: {_type(name, p)}" for name, p in properties.items()]
    return f"- {function['name']}({', '.join(arguments)}){about}"


def _type(name: str, parameter: Any) -> str:
    """Type of a parameter, its default and description: `integer = 10 (most results)`; other schemas as JSON."""
    if not isinstance(parameter, Mapping):
        return json.dumps(parameter)
    rest = dict(parameter)
    # titles that programs make of names
    if str(rest.get("title", "")).lower() == name.replace("_", " ").lower():
        del rest["title"]
    default = f" = {json.dumps(rest.pop('default'), ensure_ascii=False)}" if "default" in rest else ""
    about = f" ({rest.pop('description')})" if "description" in rest else ""
    kind = json.dumps(rest, ensure_ascii=False)
    if rest.keys() == {"type"} and isinstance(rest["type"], str):
        kind = rest["type"]
    elif rest.keys() - {"type"} == {"enum"} and rest["enum"]:
        kind = " | ".join(json.dumps(value, ensure_ascii=False) for value in rest["enum"])
    return f"{kind}{default}{about}"


def with_instructions(messages: Sequence[Message], tools: Sequence[Schema], system: bool) -> list[Message]:
    """Append the instructions to the system message; in a format without one, insert them before the first message."""
    text, messages = instructions(tools), list(messages)
    # templates refuse a system message that is not the first, and some refuse any
    if not system:
        first_turn = next((i for i, m in enumerate(messages) if m.get("role") != "system"), 0)
        messages[first_turn] = {**messages[first_turn], "content": f"{text}\n\n{messages[first_turn]['content']}"}
    elif messages[0].get("role") == "system":
        messages[0] = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
    else:
        messages.insert(0, {"role": "system", "content": text})
    return messages


def result_text(message: Message) -> str:
    return f"<tool_result>\n{message.get('content') or ''}\n</tool_result>"


def as_user(messages: Sequence[Message]) -> list[Message]:
    """Write tool results as user messages; consecutive ones are merged."""
    out: list[Message] = []
    # two user messages in a row are refused by templates that want roles to alternate
    joins = False
    for message in messages:
        if message.get("role") != "tool":
            out.append(message)
            joins = False
        elif joins:
            out[-1] = {"role": "user", "content": f"{out[-1]['content']}\n{result_text(message)}"}
        else:
            out.append({"role": "user", "content": result_text(message)})
            joins = True
    return out


def with_call_ids(messages: Sequence[Message], calls: Sequence[ToolCall]) -> list[Message]:
    """Assign tool results without a call id to the calls in order, since templates ask for id and name."""
    out: list[Message] = []
    waiting = iter(calls)
    for message in messages:
        if message.get("role") == "tool":
            call = next(waiting, None)
            # only results in the order of their calls lack an id; one that names its call keeps it
            if call is not None:
                message = {"tool_call_id": call.id, "name": call.name, **message}
        out.append(message)
    return out


def structured(calls: Sequence[ToolCall], as_json: bool) -> list[dict[str, Any]]:
    """Well-formed calls in the structure that templates expect."""
    out = []
    for call in calls:
        if call.error is None:
            arguments = json.dumps(call.arguments, ensure_ascii=False) if as_json else dict(call.arguments)
            function = {"name": call.name, "arguments": arguments}
            out.append({"type": "function", "id": call.id, "function": function})
    return out
