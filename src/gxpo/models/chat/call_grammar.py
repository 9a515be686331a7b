"""Grammars of replies that have to be calls of tools, for the formats whose calls hold their arguments as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.models.chat.tools import function_of
from gxpo.parts.protocols import Chat

BLANKS = {"whitespace_flexible": True, "whitespace_pattern": r"[ ]{0,2}"}


def call_grammar(chat: Chat, tools: Sequence[Mapping[str, Any]], *, several: bool) -> tuple[str, str] | None:
    """Grammar ("lark", source) of a call of one of these tools, or `several`; None: not known for the chat's format.

    Markers that are added tokens of the tokenizer are named as such: their letters alone would be other tokens.
    """
    form = getattr(chat, "form", None)
    name = "tags" if getattr(chat, "tools_format", "tags") == "tags" else getattr(form, "name", None)
    added = getattr(getattr(chat, "tokens", None), "markers", {})

    def mark(text: str) -> str:
        return text if text in added else json.dumps(text)

    rules, calls = [], []
    for i, function in enumerate(map(function_of, tools)):
        schema = dict(function.get("parameters") or {"type": "object"})
        title = function["name"]
        if name == "hermes":
            properties = {"name": {"const": title}, "arguments": schema}
            whole = {"type": "object", "properties": properties, "required": ["name", "arguments"]}
            body = (
                f"%json {json.dumps({**_hoisted(whole, schema), 'additionalProperties': False, 'x-guidance': BLANKS})}"
            )
            rules.append(f"call_{i}: {body}")
        elif name == "tags":
            rules.append(f'call_{i}: {json.dumps(title + "(")} arguments_{i} ")"')
            rules.append(f"arguments_{i}: %json {json.dumps({**schema, 'x-guidance': BLANKS})}")
        else:
            return None
        calls.append(f"call_{i}")
    opens, closes = ("<tool_call>", "</tool_call>") if name == "hermes" else ("<tool>", "</tool>")
    blank = '"\\n"' if name == "hermes" else ""
    rules.append(f"call: {mark(opens)} {blank} ({' | '.join(calls)}) {blank} {mark(closes)}")
    start = 'start: call ("\\n" call)*' if several else "start: call"
    return "lark", "\n".join([start, *rules])


def _hoisted(whole: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call with the definitions of its arguments' schema, to whose root references point."""
    for name in ("$defs", "definitions"):
        if name in schema:
            whole[name] = schema.pop(name)
    return whole
