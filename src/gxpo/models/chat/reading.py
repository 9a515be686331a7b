"""Parse an action into thinking, content and tool calls; compare texts up to formatting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.base.errors import ModelError
from gxpo.models.chat.formats import Format, Types
from gxpo.parts.protocols import ToolCall

# ---------------------------------------------------------------- thinking
# `<think>` and similar tags, opened by the policy or by the generation prompt.
THINKING_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


@dataclass(frozen=True)
class Thought:
    """Text split at a thought. lead: text up to its closing tag; `lead + rest` is all of it; close: a missing tag."""

    reasoning: str | None
    lead: str
    rest: str
    close: str | None = None


def opened_by(prompt: str) -> str | None:
    """Closing tag of the thought in which `prompt` ends; None if it does not end in one.

    >>> opened_by("<|assistant|><think>\\n"), opened_by("<think></think>")
    ('</think>', None)
    """
    prompt = prompt.rstrip()
    return next((close for open_, close in THINKING_TAGS if prompt.endswith(open_)), None)


def split_thinking(text: str, opened: str | None = None) -> Thought:
    """Split thinking from content at the first closing tag, if prompt or text opened one; later tags are content.

    >>> split_thinking("<think>a</think>b").reasoning, split_thinking("a</think>b", "</think>").rest
    ('a', 'b')
    >>> print(split_thinking("b<think>a</think>").reasoning)
    None
    """
    begin, close = 0, opened
    # blanks before the tag are allowed: some models write a line break first
    if close is None:
        blank = len(text) - len(text.lstrip())
        for open_, end in THINKING_TAGS:
            if text.startswith(open_, blank):
                begin, close = blank + len(open_), end
    if close is None:
        return Thought(None, "", text)
    stop = text.find(close, begin)
    if stop < 0:
        # a thought that was cut has no answer: all of it is reasoning, and the content is empty
        return Thought(text[begin:].strip("\n"), text, "", close)
    after = stop + len(close)
    return Thought(text[begin:stop].strip("\n"), text[:after], text[after:])


def answer_opening(prompt: str, prefill: str, header: str) -> str:
    """Text of a prefilled answer as it follows `prompt`, the template's text up to the answer.

    A thought that the prompt opens is not opened again. `header`: text that the template puts before an answer.
    Raises `ModelError` if the prompt opens a thought and the prefill neither opens nor closes one.
    """
    close = opened_by(prompt)
    if close is None:
        # the header is the template's whitespace: a prefill that brings its own would double it
        return prefill if prefill[0].isspace() and not header.strip() else header + prefill
    open_ = next(o for o, end in THINKING_TAGS if end == close)
    if prefill.lstrip().startswith(open_):
        # the prompt's own line break after the tag, which the prefill has as well
        return prefill.lstrip().removeprefix(open_).removeprefix("\n" if prompt.endswith("\n") else "")
    if close in prefill:
        return prefill
    raise ModelError(
        f"the chat template opens a thought ({open_}) before the answer, and the last message, which is the "
        f"assistant's, neither opens nor closes one: begin that message with {open_}"
    )


# ---------------------------------------------------------------- actions
@dataclass(frozen=True)
class Reading:
    """A parsed action. raw: text after the thinking; content: without calls; body: without parsed calls.

    lead: the text of the thinking with its tags. close: the tag that would end it, where the action was cut before.
    """

    raw: str
    content: str
    body: str
    reasoning: str | None = None
    lead: str = ""
    close: str | None = None
    calls: tuple[ToolCall, ...] = ()


def read(text: str, form: Format | None, types: Types, tools: bool, opened: str | None = None) -> Reading:
    """Parse an action. `form`: format of calls (None: without calls); without `tools` nothing is parsed as a call."""
    # channel formats mark thoughts and calls themselves: the tags of thinking have no meaning there
    if form is not None and form.channels:
        parsed = form.find(text, types)
        calls = parsed.calls if tools else ()
        return Reading(parsed.content, parsed.content, parsed.body, parsed.reasoning, calls=calls)
    thought = split_thinking(text, opened)
    # the line breaks between thought and answer belong to the template, which writes its own number of them
    rest = thought.rest.lstrip("\n") if thought.lead else thought.rest
    if form is None or not tools:
        return Reading(rest, rest, rest, thought.reasoning, thought.lead, thought.close)
    parsed = form.find(rest, types)
    return Reading(rest, parsed.content, parsed.body, thought.reasoning, thought.lead, thought.close, parsed.calls)


def same(a: Reading, b: Reading) -> bool:
    """Compare readings up to formatting: white space, JSON layout, `true` for `True`."""
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
    # bool before numbers: True would equal 1, which templates write differently
    if x is None or isinstance(x, bool):
        return {None: "null", True: "true", False: "false"}[x]
    # templates spell the same value as JSON or as Python: compare what both mean
    text = _squeeze(str(x))
    word = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    try:
        return float(word)
    except ValueError:
        return word
