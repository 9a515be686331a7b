"""Text formats of ToolQA: calls and questions as messages and JSON, or as a few characters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gxpo.parts.protocols import Message, ToolCall
from gxpo_worlds.toolqa_questions import Call, Question

ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
PLAIN_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)

INSTRUCTIONS = """Answer the question with the help of the tools.
When you know the answer, call finish with it, or write it as <answer>...</answer>.
The answer is a name or a number and nothing else; write a number in digits, without its unit."""


def opening(question: Question) -> str:
    """First observation: the question, and the names of its tables."""
    lines = [f"Question: {question.text}"]
    for name, rows in question.tables.items():
        columns = next(iter(rows.values()))
        lines.append(f'Table "{name}": rows {", ".join(rows)}; columns {", ".join(columns)}.')
    return "\n".join(lines)


def message(tool_call: ToolCall, text: str) -> Message:
    """Message with the result of a call, from the user if the call was unreadable."""
    # a chat template could not tell which tool an unreadable call was of
    if tool_call.error is not None:
        return {"role": "user", "content": text}
    call_id = {} if tool_call.id is None else {"tool_call_id": tool_call.id}
    return {"role": "tool", "name": tool_call.name, "content": text, **call_id}


def plain_call(text: str) -> ToolCall:
    """Parse the call between `<tool_call>` and `</tool_call>`; with an error if it is not one."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError) as error:
        return ToolCall("", error=f"the call is not JSON ({error})")
    name, arguments = (call.get("name"), call.get("arguments", {})) if isinstance(call, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return ToolCall("", error='a call is {"name": ..., "arguments": {...}}')
    return ToolCall(name, arguments)


def bare_call(text: str) -> Call | None:
    """Parse a call of a few characters; None if they are none."""
    if text.startswith("#") and len(text) > 1:
        return "finish", {"answer": text[1:]}
    if re.fullmatch(r"[a-z][0-9]", text):
        return "lookup", {"table": "", "row": text[0], "column": text[1]}
    return ("calculator", {"expression": text}) if re.fullmatch(r"[0-9+*/() -]+", text) else None


def bare_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Characters of a call, for `bare_call`."""
    if name == "finish":
        return f"#{arguments['answer']}"
    return f"{arguments['row']}{arguments['column']}" if name == "lookup" else arguments["expression"]
