"""Tool call formats by model family: one parser for each documented format.

A parser takes the text after the thinking and returns the text without calls and the calls. An unreadable call becomes
a call with an `error`; its text stays in `body`, which the template renders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gxpo.parts.protocols import ToolCall

Types = Mapping[str, Mapping[str, str]]  # tool -> parameter -> JSON type


@dataclass(frozen=True)
class ParsedReply:
    content: str
    body: str
    calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None


@dataclass(frozen=True)
class Format:
    """A tool call format. `opens`: text that every call contains. `channels`: the format also marks thinking."""

    name: str
    opens: str
    find: Callable[[str, Types], ParsedReply] = field(repr=False)
    channels: bool = False


def _unreadable(why: str, name: str = "") -> list[ToolCall]:
    return [ToolCall(name, error=why)]


def blocks(
    text: str, open_: str, close: str, inside: Callable[[str], list[ToolCall]], lone_end: bool = False
) -> ParsedReply:
    """Parse every `open_ ... close`; with `lone_end` the last one may end where the text ends."""
    # two texts: the content without any call, and the body, in which unreadable calls stay for the history to show
    content_parts, kept_parts, calls, position = [], [], [], 0
    while (begin := text.find(open_, position)) >= 0:
        inner = begin + len(open_)
        end = text.find(close, inner)
        after = end + len(close) if end >= 0 else len(text)
        if end < 0 and not lone_end:
            block_calls = _unreadable(f"the call is not closed by {close}")
        else:
            block_calls = inside(text[inner : end if end >= 0 else len(text)])
        content_parts.append(text[position:begin])
        # a call that can't be read stays in the text, so that the model sees its own mistake in the next turn
        kept_parts.append(text[position:begin] if all(c.error is None for c in block_calls) else text[position:after])
        calls += block_calls
        position = after
    # a text without calls is not stripped: it must stay what was sampled
    if not calls:
        return ParsedReply(text, text)
    return ParsedReply(
        "".join([*content_parts, text[position:]]).strip(),
        "".join([*kept_parts, text[position:]]).strip(),
        tuple(calls),
    )


def call_of(data: Any) -> ToolCall:
    """Tool call from `{"name": ..., "arguments" | "parameters": {...} or JSON text}`."""
    if not isinstance(data, dict):
        return ToolCall("", error="a call is a JSON object with a name and arguments")
    # OpenAI nests name and arguments under "function"; other formats have them flat, under names of their own
    inner = data.get("function")
    data = inner if isinstance(inner, dict) else data
    name = data.get("name", data.get("tool_name", inner))
    if not isinstance(name, str) or not name:
        return ToolCall("", error="the call names no tool")
    arguments = data.get("arguments", data.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(arguments, dict):
        return ToolCall(name, error="the arguments are not a JSON object")
    return ToolCall(name, arguments)


def _json(text: str) -> Any:
    """Parse JSON; None for other text, of which calls have no other reading."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _objects(text: str) -> list[ToolCall]:
    """Calls from one JSON object, or a list of them."""
    data = _json(text)
    if data is None:
        return _unreadable("the call is not JSON")
    items = data if isinstance(data, list) else [data]
    return [call_of(d) for d in items] or _unreadable("the list of calls is empty")


def _typed(text: str, kind: str | None) -> Any:
    """Parse a parameter without JSON quotes: a string if the schema says so or nothing else fits."""
    if kind == "string":
        return text
    value = _json({"True": "true", "False": "false", "None": "null"}.get(text.strip(), text))
    return text if value is None and text.strip() not in ("null", "None") else value


def _unframed(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def hermes(text: str, types: Types) -> ParsedReply:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen2.5, Qwen3)."""
    return blocks(text, "<tool_call>", "</tool_call>", _objects)


FUNCTION = re.compile(r"<function=([^<>\n]+)>")
PARAMETER = re.compile(r"<parameter=([^<>\n]+)>")


def _parameters(body: str) -> tuple[list[tuple[str, str]], str]:
    """Parse every `<parameter=key>value</parameter>` into pairs; also return the text between them."""
    pairs, between, position, close = [], [], 0, "</parameter>"
    while (head := PARAMETER.search(body, position)) is not None and (end := body.find(close, head.end())) >= 0:
        pairs.append((head[1].strip(), _unframed(body[head.end() : end])))
        between.append(body[position : head.start()])
        position = end + len(close)
    return pairs, "".join([*between, body[position:]])


def qwen_xml(text: str, types: Types) -> ParsedReply:
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>` (Qwen3-Coder, Qwen3.5)."""

    def inside(block: str) -> list[ToolCall]:
        body = block.strip()
        match = FUNCTION.match(body)
        if not match:
            return _unreadable("a call is <function=name>...</function>")
        name = match[1].strip()
        pairs, between = _parameters(body[match.end() :].removesuffix("</function>"))
        # text between the parameters would be dropped silently: the model has to learn that it is no call
        if between.strip():
            return _unreadable("a parameter is <parameter=key>value</parameter>", name)
        kinds = types.get(name, {})
        return [ToolCall(name, {k: _typed(v, kinds.get(k)) for k, v in pairs})]

    return blocks(text, "<tool_call>", "</tool_call>", inside)


BETWEEN = re.compile(r"</arg_key>\s*<arg_value>")


def _arguments(block: str) -> tuple[list[tuple[str, str]], str]:
    """Parse every `<arg_key>key</arg_key><arg_value>value</arg_value>`; also return the text between them."""
    pairs, between, position, open_, close = [], [], 0, "<arg_key>", "</arg_value>"
    while (begin := block.find(open_, position)) >= 0:
        middle = BETWEEN.search(block, begin)
        end = block.find(close, middle.end()) if middle is not None else -1
        # cut off within a pair: what is left counts as text between pairs, which the caller refuses
        if middle is None or end < 0:
            break
        pairs.append((block[begin + len(open_) : middle.start()].strip(), block[middle.end() : end]))
        between.append(block[position:begin])
        position = end + len(close)
    return pairs, "".join([*between, block[position:]])


def glm(text: str, types: Types) -> ParsedReply:
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>` (GLM-4.5)."""

    def inside(block: str) -> list[ToolCall]:
        name = block.partition("<arg_key>")[0].strip()
        pairs, between = _arguments(block)
        # any text between the pairs would be dropped silently: the model has to learn that it is no call
        if not name or between.strip() != name:
            return _unreadable("a call is a name and pairs of <arg_key> and <arg_value>")
        kinds = types.get(name, {})
        return [ToolCall(name, {k: _typed(v, kinds.get(k)) for k, v in pairs})]

    return blocks(text, "<tool_call>", "</tool_call>", inside)


def llama(text: str, types: Types) -> ParsedReply:
    """The whole answer is `{"name": ..., "parameters": {...}}`, after `<|python_tag|>` or alone; several with `;`."""
    head, tag, body = text.partition("<|python_tag|>")
    if not tag:
        head, body = "", text
        # without the tag only an answer that is an object with such keys is a call: answers in JSON are common
        if not re.match(r'\s*\{\s*"(name|type|function)"', text):
            return ParsedReply(text, text)
    calls, decoder, position = [], json.JSONDecoder(), 0
    # several objects follow each other without a list, so that each is decoded where the last one ended
    while position < len(body):
        if body[position] in "; \n\t":
            position += 1
            continue
        try:
            data, position = decoder.raw_decode(body, position)
        except (ValueError, RecursionError):
            calls += _unreadable("the call is not JSON")
            break
        calls.append(call_of(data))
    calls = calls or _unreadable("the call is empty")
    return ParsedReply(head.strip(), head.strip() if all(c.error is None for c in calls) else text, tuple(calls))


WORD = re.compile(r"[^\[{\s]*")


def _name_and_arguments(part: str) -> tuple[str, str] | None:
    """Name and arguments of `name[CALL_ID]id[ARGS]{...}` (id and `[ARGS]` optional); None for another text."""
    rest = part.strip()
    name = rest[: WORD.match(rest).end()]  # type: ignore[union-attr]  # it matches the empty text
    rest = rest[len(name) :].lstrip()
    if rest.startswith("[CALL_ID]"):
        rest = WORD.sub("", rest.removeprefix("[CALL_ID]"), count=1).lstrip()
    rest = rest.removeprefix("[ARGS]").lstrip()
    return (name, rest) if name and rest.startswith("{") else None


def mistral(text: str, types: Types) -> ParsedReply:
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` once for each call."""
    head, marker, body = text.partition("[TOOL_CALLS]")
    if not marker:
        return ParsedReply(text, text)
    # older versions of the template write one list behind the marker, later ones a marker for each call
    if body.lstrip().startswith("["):
        calls = _objects(body)
    else:
        calls = []
        for part in body.split("[TOOL_CALLS]"):
            call_fields = _name_and_arguments(part)
            call = call_of({"name": call_fields[0], "arguments": call_fields[1]}) if call_fields else None
            calls += [call] if call else _unreadable("a call is a name, [ARGS] and a JSON object")
    is_readable = all(c.error is None for c in calls)
    return ParsedReply(head.strip(), head.strip() if is_readable else text, tuple(calls))


def _fenced(text: str) -> tuple[str, str] | None:
    """First line, and content of a fenced block that is the whole rest; None for another text."""
    line, _, rest = text.strip().partition("\n")
    inside = rest.removeprefix("```").removesuffix("```").removeprefix("json")
    if len(rest) < 7 or not (rest.startswith("```") and rest.endswith("```") and inside.startswith("\n")):
        return None
    return line, inside.removeprefix("\n").removesuffix("\n")


def deepseek(text: str, types: Types) -> ParsedReply:
    """`function<|tool_sep|>name` and a fenced JSON object (V3, R1), or `name<|tool_sep|>{...}` (V3.1)."""

    def inside(block: str) -> list[ToolCall]:
        left, separator, right = block.partition("<\uff5ctool\u2581sep\uff5c>")
        if not separator:
            return _unreadable("a call has a <\uff5ctool\u2581sep\uff5c> between its name and its arguments")
        name, body = _fenced(right) or (left, right)
        return [call_of({"name": name.strip(), "arguments": body})]

    parsed = blocks(text, "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>", inside)
    if not parsed.calls:
        return parsed
    # the markers around all calls are outside of each call's block
    clean = [
        re.sub("<\uff5ctool\u2581calls\u2581(begin|end)\uff5c>", "", t).strip() for t in (parsed.content, parsed.body)
    ]
    return ParsedReply(clean[0], clean[1] if all(c.error is None for c in parsed.calls) else text, parsed.calls)


def kimi(text: str, types: Types) -> ParsedReply:
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>` (Kimi K2)."""

    def inside(block: str) -> list[ToolCall]:
        left, _, right = block.partition("<|tool_call_argument_begin|>")
        # Kimi numbers its calls in the name (functions.NAME:0); the tool's name has neither
        name = left.strip().removeprefix("functions.").rpartition(":")[0] or left.strip()
        return [call_of({"name": name, "arguments": right})]

    parsed = blocks(text, "<|tool_call_begin|>", "<|tool_call_end|>", inside)
    if not parsed.calls:
        return parsed
    content = re.sub(r"<\|tool_calls_section_(begin|end)\|>", "", parsed.content).strip()
    return ParsedReply(content, content if all(c.error is None for c in parsed.calls) else text, parsed.calls)


def _between(open_: str, close: str, lone_end: bool) -> Callable[[str, Types], ParsedReply]:
    def find(text: str, types: Types) -> ParsedReply:
        return blocks(text, open_, close, _objects, lone_end)

    return find


SEGMENT = re.compile(  # a head begins where the text, a message or a mark does: a search from every letter is quadratic
    r"(?:(?:\A|<\|start\|>assistant|(?<=\|>))([^<]*))?(?:<\|channel\|>([^<]*))?(?:<\|constrain\|>[^<]*)?<\|message\|>"
)
RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")


def harmony(text: str, types: Types) -> ParsedReply:
    """Channels (gpt-oss): analysis is thinking, final is content, commentary to a recipient is a call."""
    content_parts, reasoning, calls, kept_parts = [], [], [], []
    heads = list(SEGMENT.finditer(text))
    if not heads:
        return ParsedReply(text, text)
    for head, next_ in zip(heads, [*heads[1:], None], strict=True):
        body = text[head.end() : next_.start() if next_ else len(text)]
        # each segment ends with a token that is part of neither its content nor the JSON of a call
        body = re.sub(r"<\|(end|call|return)\|>$", "", body)
        channel = head[2] or ""
        recipient = RECIPIENT.search(f"{head[1] or ''} {channel}")
        if recipient:
            call = call_of({"name": recipient[1], "arguments": body})
            calls.append(call)
            kept_parts += [] if call.error is None else [body]
        elif channel.strip() == "analysis":
            reasoning.append(body)
        else:
            content_parts.append(body)
    # text before the first marker is in no channel: it counts as content, so that nothing sampled is lost
    if heads[0].start() > 0:
        content_parts.insert(0, text[: heads[0].start()])
    text_parts = "".join(content_parts)
    return ParsedReply(text_parts, "".join([text_parts, *kept_parts]), tuple(calls), "".join(reasoning) or None)


TAG = re.compile(r"([A-Za-z_][\w.\-]*)\s*\((.*)\)", re.DOTALL)


def tags(text: str, types: Types) -> ParsedReply:
    """`<tool>name({"key": value})</tool>`: gxpo's own form, for models whose template knows no tools."""

    def inside(block: str) -> list[ToolCall]:
        match = TAG.fullmatch(block.strip())
        if not match:
            return _unreadable('a call is name({"key": value})')
        return [call_of({"name": match[1], "arguments": match[2].strip() or "{}"})]

    return blocks(text, "<tool>", "</tool>", inside)


TAGS = Format("tags", "<tool>", tags)
NATIVE = (  # the first that reads back a call the template has written is the template's form
    Format("hermes", "<tool_call>", hermes),
    Format("qwen_xml", "<function=", qwen_xml),
    Format("glm", "<arg_key>", glm),
    Format("mistral", "[TOOL_CALLS]", mistral),
    Format("deepseek", "<\uff5ctool\u2581sep\uff5c>", deepseek),
    Format("kimi", "<|tool_call_argument_begin|>", kimi),
    Format("harmony", "<|channel|>", harmony, channels=True),
    Format("command", "<|START_ACTION|>", _between("<|START_ACTION|>", "<|END_ACTION|>", False)),
    Format("granite", "<|tool_call|>", _between("<|tool_call|>", "<|/tool_call|>", True)),
    Format("llama", '{"name"', llama),
)
