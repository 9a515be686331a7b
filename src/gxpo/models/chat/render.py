"""Render chat templates: messages to text, with a time limit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Message

LONGEST = 5.0  # limit of a rendering in seconds of CPU time; usual ones take milliseconds


class Endless(ModelError):
    """A template that does not terminate."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Context manager: raise `Endless` after so many seconds of CPU time; no limit outside of the main thread."""
    # signals reach the main thread alone, and Windows has no interval timer
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def end(*_: object) -> None:
        raise Endless(f"the chat template comes to no end: it was stopped after {seconds:g} seconds")

    # CPU time and not the clock: a busy machine must not make a good template fail
    previous_handler = signal.signal(signal.SIGVTALRM, end)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)  # again, should the first be lost in a finaliser
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous_handler or signal.SIG_DFL)


class Template:
    """A chat template. `text`: the Jinja source. `kwargs`: its variables, e.g. `enable_thinking`.

    parts    it takes contents as lists of parts, as some templates of vision models do
    picture  text that it writes for a picture, the model's placeholder; "": it shows no pictures
    """

    def __init__(self, tokenizer: Any, text: str, kwargs: Mapping[str, Any], parts: bool = False) -> None:
        self.tokenizer, self.text, self.kwargs, self.parts = tokenizer, text, dict(kwargs), parts
        self.picture = ""

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), answer: bool = True) -> str:
        """Render `messages`, with the generation prompt if `answer`. Contents are texts, in which marks stand for
        pictures (`gxpo.base.media`), and so is what comes out: the template is shown pictures as parts, and its k-th
        placeholder is the k-th picture. A template that can't be shown any has the marks in its texts.

        `ModelError` with the template's own words where it refuses them, and where it leaves a picture out; `Endless`
        where it does not end.
        """
        # a template that drops a picture, or writes one twice, would show the model other pictures than the messages do
        refs = [ref for m in messages for ref in media.split(_text(m))[1::2]]
        text = self._apply(messages, tools, answer)
        if not refs:
            return text
        # a placeholder's k-th occurrence is the k-th picture; a user who types the placeholder would shift them, so
        # counts must agree
        if self.picture:
            pieces = text.split(self.picture)
            if len(pieces) == len(refs) + 1:
                marks = [*(f"{media.MARK[0]}{ref}{media.MARK[1]}" for ref in refs), ""]
                return "".join(piece + mark for piece, mark in zip(pieces, marks, strict=True))
            picture_count = len(pieces) - 1
        else:
            rendered_refs = media.split(text)[1::2]
            if rendered_refs == refs:
                return text
            picture_count = len(rendered_refs)
        raise ModelError(f"the chat template writes {picture_count} pictures where the messages have {len(refs)}")

    def _apply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], answer: bool) -> str:
        try:
            with _limited(LONGEST):
                return self.tokenizer.apply_chat_template(
                    # transformers renders in a sandbox of Jinja's, which keeps a template from files but not from
                    # endless loops
                    [self._form(m) for m in messages],
                    tools=[dict(t) for t in tools] or None,
                    chat_template=self.text,
                    add_generation_prompt=answer,
                    tokenize=False,
                    **self.kwargs,
                )
        except Endless:
            raise
        except Exception as error:  # a template is foreign code and may raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            roles = ", ".join(str(m.get("role")) for m in messages[-6:])
            more = "..., " if len(messages) > 6 else ""
            calls = any(m.get("tool_calls") for m in messages)
            remedy = "; chat.tools=tags writes the tool calls of the history as text" if calls else ""
            raise ModelError(f"the chat template refuses the messages ({more}{roles}): {reason}{remedy}") from error

    def _form(self, message: Message) -> dict[str, Any]:
        """Message in the form that the template takes."""
        shows = bool(self.picture) and media.MARK[0] in _text(message)
        return in_parts(message, shows) if shows or self.parts else dict(message)


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def in_parts(message: Message, pictures: bool = False) -> dict[str, Any]:
    """Convert a content to a list of parts: its text, or with `pictures` its texts and pictures in order."""
    content = message.get("content")
    if not isinstance(content, str):
        return dict(message)
    if not pictures:
        return {**message, "content": [{"type": "text", "text": content}]}
    parts: list[dict[str, Any]] = []
    for i, piece in enumerate(media.split(content)):
        if i % 2:
            parts.append({"type": "image"})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return {**message, "content": parts}


def source(tokenizer: Any, template: str | Path | None) -> str:
    """Jinja source of `template`: itself, a file's, or (None) the tokenizer's own."""
    if template is None:
        # several templates by name: "default" is the one for conversations
        own_template = tokenizer.chat_template
        if isinstance(own_template, dict):
            own_template = own_template.get("default")
        if not own_template:
            raise ModelError("the tokenizer has no chat template: give one (template=FILE.jinja), or template='none'")
        return own_template
    if isinstance(template, str) and ("{%" in template or "{{" in template):
        return template
    try:
        # a pipe or a device would block or never end
        if Path(template).exists() and not Path(template).is_file():
            raise OSError("a named pipe, for one, would be waited for")
        return Path(template).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"the chat template {str(template)!r} is neither Jinja text nor a readable file") from error


def has_template(tokenizer: Any) -> bool:
    own_template = getattr(tokenizer, "chat_template", None)
    return bool(own_template.get("default") if isinstance(own_template, dict) else own_template)


def unused(word: str, *texts: str) -> str:
    """`word`, lengthened until no text contains it."""
    while any(word in t for t in texts):
        word += "x"
    return word


def shared_prefix(a: str, b: str) -> int:
    """Number of characters in the common prefix of two texts."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
