"""Messages: their normal form (contents are texts, tool calls have OpenAI's structure), those that open a prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Chat, Message

TEXT_PARTS = ("text", "input_text", "output_text")  # OpenAI's names for a part of content that is a text
THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning")  # fields of messages for thinking
FORMER_CALL = "function_call"  # OpenAI's field before there were tool_calls


def normal_messages(messages: Sequence[Message], first: int = 0) -> list[Message]:
    """Normalise messages: null keys left out, parts of text joined, tool calls in OpenAI's structure.

    `ModelError` names the message (counted from `first`) and the field that can't be read. Parts that are pictures stay
    for `gxpo.base.media`.
    """
    out = []
    for i, message in enumerate(messages, start=first):
        try:
            out.append(normal_message(message))
        except ModelError as error:
            raise ModelError(f"message {i}: {error}") from None
    return out


def normal_message(message: Any) -> Message:
    """Normalise one message; see `normal_messages`."""
    if not isinstance(message, Mapping):
        raise ModelError(f"a message is an object with 'role' and 'content', not {_short(message)}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ModelError(f"'role' is a text such as user or assistant, not {_short(role)}")
    # texts are the common case, and the same object again lets callers see that nothing has changed
    if isinstance(content, str) and len(message) == 2:
        return message
    # data sets from Arrow have every key in every row, null where the message has none; templates test for keys
    normal = {key: value for key, value in message.items() if value is not None}
    if FORMER_CALL in normal:
        raise ModelError(f"{FORMER_CALL!r} is the old form: write the call into 'tool_calls'")
    calls = normal.pop("tool_calls", ())
    if not isinstance(calls, list | tuple):
        raise ModelError(f"'tool_calls' is a list, not {_short(calls)}")
    if calls and role != "assistant":
        raise ModelError(f"'tool_calls' belongs to the assistant, not to role {role!r}")
    empty = content is None or (isinstance(content, list | tuple) and not content)
    if empty and not calls and role != "tool":
        raise ModelError("'content' is missing; it may be null beside tool calls alone")
    # null beside calls is OpenAI's form: a template that joins texts would write "None"
    normal["content"] = "" if empty else join_parts(content)
    if calls:
        normal["tool_calls"] = [_normal_call(call, f"tool call {i}") for i, call in enumerate(calls)]
    # the same object where nothing had to be changed, which keeps a large data set from being copied
    return message if normal == message else normal


def join_parts(content: Any) -> Any:
    """Join a content's parts of text; a list that holds pictures stays a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ModelError(f"'content' is a text or a list of parts, not {_short(content)}")
    parts = [_normal_part(part, i) for i, part in enumerate(content)]
    return parts if any(part["type"] == "image" for part in parts) else "".join(part["text"] for part in parts)


def _normal_part(part: Any, number: int) -> Mapping[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "image" and part.get("image") is not None:
        return {"type": "image", "image": part["image"]}
    if kind not in TEXT_PARTS:
        raise ModelError(
            f"part {number} of 'content' is a text or an image, as {{type: text, text: ...}} or "
            f"{{type: image, image: ...}}, not {_short(part)}"
        )
    if not isinstance(part.get("text"), str):
        raise ModelError(f"part {number} of 'content' has no text: {_short(part)}")
    return {"type": "text", "text": part["text"]}


def _normal_call(call: Any, where: str) -> dict[str, Any]:
    """Normalise a call to OpenAI's structure; a missing id is left out."""
    inner = call.get("function") if isinstance(call, Mapping) else None
    function = inner if isinstance(inner, Mapping) else call
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ModelError(f"{where} is {{function: {{name: ..., arguments: {{...}}}}}}, not {_short(call)}")
    arguments = _arguments(function.get("arguments"), f"{where} ({function['name']})")
    normal = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return normal if call.get("id") in (None, "") else {**normal, "id": str(call["id"])}


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    """Parse arguments to an object, from an object, its JSON text, or null or empty text (no arguments)."""
    # OpenAI's API has JSON text, most templates iterate over an object: history holds objects only
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{where}: 'arguments' is not valid JSON ({error}): {_short(arguments)}") from None
    if value is None and arguments is None:
        return {}
    if not isinstance(value, Mapping):
        raise ModelError(f"{where}: 'arguments' is an object or JSON text of one, not {_short(arguments)}")
    return dict(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# ---------------------------------------------------------------- calls of the history
def has_calls(messages: Sequence[Message]) -> bool:
    """Return True if the history has tool calls or answers to them."""
    return any(m.get("tool_calls") or m.get("role") == "tool" for m in messages)


def pair_answers(messages: Sequence[Message], renumber: bool = False) -> list[Message]:
    """Give tool calls ids, and their answers the id and the name of their call; without an id, in order of the calls.

    renumber  replace all ids by nine letters and digits, as the strictest templates want
    """
    out: list[Message] = []
    number = 0
    names: dict[str, tuple[str, str]] = {}  # id -> (id that is written, name), of the calls so far
    waiting: list[str] = []
    for message in messages:
        if message.get("tool_calls"):
            # answers belong to the calls of the latest message: earlier ones stay unanswered
            calls = []
            waiting = []
            for call in message["tool_calls"]:
                call_id = call.get("id") or f"hist{number:05d}"
                names[call_id] = (f"hist{number:05d}" if renumber else call_id, call["function"]["name"])
                calls.append({**call, "id": names[call_id][0]})
                waiting.append(call_id)
                number += 1
            message = {**message, "tool_calls": calls}
        elif message.get("role") == "tool":
            call_id = message.get("tool_call_id") or (waiting[0] if waiting else None)
            # an answer with an id of its own may come in any order; without one it belongs to the first that waits
            if call_id in waiting:
                waiting.remove(call_id)
            if call_id in names:
                # a name that the data set gives wins over that of the call
                message = {"name": names[call_id][1], **message, "tool_call_id": names[call_id][0]}
        out.append(message)
    return out


def padded_arguments(messages: Sequence[Message]) -> set[str]:
    """Names of arguments that are null in all calls of one tool and set in another's: padding by Arrow."""
    tools_by_key: dict[str, set[str]] = {}
    nulls: set[tuple[str, str]] = set()
    # Arrow gives every call the union of all tools' arguments: a key that only another tool sets was never written
    for function in (call["function"] for m in messages for call in m.get("tool_calls", ())):
        for key, value in function["arguments"].items():
            if value is None:
                nulls.add((function["name"], key))
            else:
                tools_by_key.setdefault(key, set()).add(function["name"])
    return {key for tool, key in nulls if key in tools_by_key and tool not in tools_by_key[key]}


def with_arguments(messages: Sequence[Message], as_json: bool) -> list[Message]:
    """Write the arguments of calls as objects, or as JSON text."""
    if not as_json:
        return list(messages)
    out: list[Message] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            functions = [{**c["function"], "arguments": _json(c["function"]["arguments"])} for c in calls]
            message = {**message, "tool_calls": [{**c, "function": f} for c, f in zip(calls, functions, strict=True)]}
        out.append(message)
    return out


def _json(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, Mapping) else arguments


def with_tags(messages: Sequence[Message]) -> list[Message]:
    """Write tool calls into the contents as text, in the form `<tool>name({...})</tool>`."""
    out: list[Message] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            tags = [f"<tool>{c['function']['name']}({_json(c['function']['arguments'])})</tool>" for c in calls]
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            message = {**rest, "content": "\n".join([message["content"], *tags]).strip()}
        out.append(message)
    return out


# ---------------------------------------------------------------- prefilled answers
def without_prefill(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """Split off the assistant's message at the end, whose text the policy continues ("" without one).

    `ModelError` if that message has more than a text.
    """
    if not messages or messages[-1]["role"] != "assistant":
        return list(messages), ""
    *rest, last = messages
    if last.get("tool_calls"):
        raise ModelError("the last message is a tool call: add the tool's answer, or leave the call out")
    if more := [key for key in THOUGHT_KEYS if last.get(key)]:
        raise ModelError(f"the last message is the assistant's, to be continued: write its {more[0]!r} into 'content'")
    return rest, last["content"]


# ---------------------------------------------------------------- messages that open a conversation
def messages_of(observation: str | Sequence[Message]) -> list[Message]:
    """Turn an observation into messages; a plain string becomes one user message.

    Pictures become marks in the texts (`gxpo.base.media.marked`).
    """
    if isinstance(observation, str):
        return [{"role": "user", "content": observation}]
    return [m if isinstance(m.get("content"), str) else media.with_marks(normal_message(m)) for m in observation]


def prompt_messages(chat: Chat, system: str | None, prompt: str | Sequence[Message]) -> list[Message]:
    """Return the opening messages for a prompt; a plain string becomes one user message."""
    # a rendered prompt is the template's output already: rendering it again would nest the markup
    if getattr(chat, "is_rendered", False) and not isinstance(prompt, str):
        raise ModelError(
            "chat.template=rendered takes prompts that are texts, and this one is messages, which a template renders: "
            "leave chat.template at auto"
        )
    return with_system(chat, system, messages_of(prompt))


def text_of(messages: Sequence[Message]) -> str:
    """Join the texts of messages by lines, for people to read: pictures by name."""
    return "\n".join(media.text_of(m.get("content")) for m in messages)


def marked(messages: Sequence[Message]) -> str:
    """Join the texts of messages by lines, with marks for pictures, for use in another message."""
    return "\n".join(media.marked(m.get("content")) for m in messages)


def opened(instructions: str, messages: Sequence[Message]) -> list[Message]:
    """Put instructions before the first user message; without one they become a user message."""
    if not instructions:
        return list(messages)
    for i, message in enumerate(messages):
        if message["role"] == "user":
            joined = {**message, "content": f"{instructions}\n\n{message['content']}"}
            return [*messages[:i], joined, *messages[i + 1 :]]
    return [{"role": "user", "content": instructions}, *messages]


def with_system(chat: Chat, system: str | None, messages: Sequence[Message]) -> list[Message]:
    """Put a system message first; if the template has no such role, its text opens the first user message."""
    if system is None:
        return list(messages)
    if getattr(getattr(chat, "facts", None), "system", True):
        return [{"role": "system", "content": system}, *messages]
    return opened(system, messages)
