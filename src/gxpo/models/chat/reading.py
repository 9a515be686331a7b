"""Parse an action into thinking, content and tool calls; compare texts up to formatting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.models.chat import reasoning
from gxpo.models.chat.formats import Format, Types
from gxpo.parts.protocols import ToolCall


@dataclass(frozen=True)
class Reading:
    """said: text after the thinking, as written; content: without calls; kept: without the calls that were parsed.

    lead: the text of the thinking with its tags. close: the tag that would end it, where the action was cut before.
    """

    said: str
    content: str
    kept: str
    reasoning: str | None = None
    lead: str = ""
    close: str | None = None
    calls: tuple[ToolCall, ...] = ()


def read(text: str, form: Format | None, types: Types, tools: bool, opened: str | None = None) -> Reading:
    """Parse an action. `form`: format of calls (None: there are none); without `tools` nothing is taken for a call."""
    if form is not None and form.channels:
        parsed = form.find(text, types)
        calls = parsed.calls if tools else ()
        return Reading(parsed.content, parsed.content, parsed.kept, parsed.reasoning, calls=calls)
    thought = reasoning.split(text, opened)
    rest = thought.rest.lstrip("\n") if thought.lead else thought.rest
    if form is None or not tools:
        return Reading(rest, rest, rest, thought.reasoning, thought.lead, thought.close)
    parsed = form.find(rest, types)
    return Reading(rest, parsed.content, parsed.kept, thought.reasoning, thought.lead, thought.close, parsed.calls)


def same(a: Reading, b: Reading) -> bool:
    """Equality up to formatting: white space, JSON layout, `true` for `True`."""
    return (
        _squeeze(a.content) == _squeeze(b.content)
        and _squeeze(a.reasoning or "") == _squeeze(b.reasoning or "")
        and [_call(c) for c in a.calls] == [_call(c) for c in b.calls]
    )


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _call(call: ToolCall) -> Any:
    return (call.name, call.error is None, value(call.arguments))


def value(x: Any) -> Any:
    """Canonical spelling of values that templates write differently.

    >>> value({"a": True, "b": [1, "x  y"]}) == value({"a": "true", "b": "[1, 'x y']"}), value("1.0") == value(1)
    (False, True)
    >>> value({"a": True, "n": None}) == value({"a": "True", "n": "null"})
    True
    """
    if isinstance(x, Mapping):
        return {str(k): value(v) for k, v in x.items()}
    if isinstance(x, Sequence) and not isinstance(x, str):
        return [value(v) for v in x]
    if x is None or isinstance(x, bool):
        return {None: "null", True: "true", False: "false"}[x]
    text = _squeeze(str(x))
    word = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    try:
        return float(word)
    except ValueError:
        return word
