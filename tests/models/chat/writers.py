"""How a policy of each family writes thinking and calls: the formats once more, written by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string"}, "count": {"type": "integer"}, "deep": {"type": "boolean"}},
            },
        },
    }
    for name in ("look", "find.all")
]

BLANK = "\u2581"
Call = tuple[str, Mapping[str, Any]]


def _hermes(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': n, 'arguments': a}, ensure_ascii=False)}\n</tool_call>" for n, a in calls
    )


def _qwen_xml(calls: Sequence[Call]) -> str:
    def parameter(k: str, v: Any) -> str:
        text = v if isinstance(v, str) else json.dumps(v)
        return f"<parameter={k}>\n{text}\n</parameter>\n"

    return "\n".join(
        f"<tool_call>\n<function={n}>\n{''.join(parameter(k, v) for k, v in a.items())}</function>\n</tool_call>"
        for n, a in calls
    )


def _glm(calls: Sequence[Call]) -> str:
    def pair(k: str, v: Any) -> str:
        text = v if isinstance(v, str) else json.dumps(v)
        return f"\n<arg_key>{k}</arg_key>\n<arg_value>{text}</arg_value>"

    return "\n".join(f"<tool_call>{n}{''.join(pair(k, v) for k, v in a.items())}\n</tool_call>" for n, a in calls)


def _llama(calls: Sequence[Call]) -> str:
    return "; ".join(json.dumps({"name": n, "parameters": a}, ensure_ascii=False) for n, a in calls)


def _mistral(calls: Sequence[Call]) -> str:
    return "[TOOL_CALLS] " + json.dumps([{"name": n, "arguments": a} for n, a in calls], ensure_ascii=False)


def _deepseek(calls: Sequence[Call]) -> str:
    one = "<|tool_call_begin|>function<|tool_sep|>{}\n```json\n{}\n```<|tool_call_end|>"
    inner = "".join(one.format(n, json.dumps(a, ensure_ascii=False)) for n, a in calls)
    text = f"<|tool_calls_begin|>{inner}<|tool_calls_end|>"
    return re.sub(r"<\|(tool\w+)\|>", lambda m: f"<\uff5c{m[1].replace('_', BLANK)}\uff5c>", text)


def _command(calls: Sequence[Call]) -> str:
    inner = json.dumps([{"tool_name": n, "parameters": a} for n, a in calls], ensure_ascii=False)
    return f"<|START_ACTION|>{inner}<|END_ACTION|>"


def _granite(calls: Sequence[Call]) -> str:
    return "<|tool_call|>" + json.dumps([{"name": n, "arguments": a} for n, a in calls], ensure_ascii=False)


def _harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{n} json<|message|>{json.dumps(a, ensure_ascii=False)}" for n, a in calls
    )


def _tags(calls: Sequence[Call]) -> str:
    return "".join(f"<tool>{n}({json.dumps(a, ensure_ascii=False)})</tool>" for n, a in calls)


WRITERS = {
    "hermes": _hermes,
    "qwen_xml": _qwen_xml,
    "glm": _glm,
    "llama": _llama,
    "mistral": _mistral,
    "deepseek": _deepseek,
    "command": _command,
    "granite": _granite,
    "harmony": _harmony,
    "tags": _tags,
}


def action_text(
    form: str | None, content: str, thought: str | None, calls: Sequence[Call], opened: bool = False
) -> str:
    """An action as a well-behaved policy writes it."""
    if form == "harmony":
        parts = [] if thought is None else [f"<|channel|>analysis<|message|>{thought}<|end|>"]
        parts += [_harmony(calls)] if calls else [f"<|channel|>final<|message|>{content}"]
        return "<|start|>assistant".join(parts)
    lead = "" if thought is None else f"{thought}\n</think>\n\n" if opened else f"<think>\n{thought}\n</think>\n\n"
    if not calls:
        return lead + content
    calls_text = WRITERS[form or "tags"](calls)
    between = "\n" if content.strip() and form in ("hermes", "qwen_xml", "glm") else ""
    return lead + ("" if form in ("llama", "mistral") else content.strip()) + between + calls_text
