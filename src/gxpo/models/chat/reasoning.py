"""Split thinking from content: `<think>` and similar tags, opened by the policy or by the generation prompt."""

from __future__ import annotations

from dataclasses import dataclass

from gxpo.base.errors import ModelError

TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


@dataclass(frozen=True)
class Thought:
    """lead: text up to and including the closing tag; `lead + rest` is the whole text. close: the tag, if missing."""

    reasoning: str | None
    lead: str
    rest: str
    close: str | None = None


def opened_by(prompt: str) -> str | None:
    """Closing tag that an action after `prompt` has to write, if the prompt ends inside a thought.

    >>> opened_by("<|assistant|><think>\\n"), opened_by("<think></think>")
    ('</think>', None)
    """
    prompt = prompt.rstrip()
    return next((close for open_, close in TAGS if prompt.endswith(open_)), None)


def split(text: str, opened: str | None = None) -> Thought:
    """Split at the first closing tag, if the prompt or the text opened it; later tags are content.

    >>> split("<think>a</think>b").reasoning, split("a</think>b", "</think>").rest, split("b<think>a</think>").reasoning
    ('a', 'b', None)
    """
    begin, close = 0, opened
    if close is None:
        blank = len(text) - len(text.lstrip())
        for open_, end in TAGS:
            if text.startswith(open_, blank):
                begin, close = blank + len(open_), end
    if close is None:
        return Thought(None, "", text)
    stop = text.find(close, begin)
    if stop < 0:
        return Thought(text[begin:].strip("\n"), text, "", close)
    after = stop + len(close)
    return Thought(text[begin:stop].strip("\n"), text[:after], text[after:])


def answer_opening(prompt: str, prefill: str, header: str) -> str:
    """The beginning of an answer as it stands behind `prompt`, the template's text up to the answer.

    A thought that the prompt opens is not opened again. `header`: what the template puts before an answer.
    Raises `ModelError` where the prompt opens a thought and the beginning is none.
    """
    close = opened_by(prompt)
    if close is None:
        return prefill if prefill[0].isspace() and not header.strip() else header + prefill
    open_ = next(o for o, end in TAGS if end == close)
    if prefill.lstrip().startswith(open_):
        return prefill.lstrip().removeprefix(open_).removeprefix("\n" if prompt.endswith("\n") else "")
    if close in prefill:
        return prefill
    raise ModelError(
        f"the chat template opens a thought ({open_}) before the answer, and the last message, which is the "
        f"assistant's, neither opens nor closes one: begin that message with {open_}"
    )
