"""A chat template as a function from messages to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.errors import ModelError
from gxpo.protocols import Message


class Template:
    """`text`: the Jinja source. `kwargs`: variables the template knows, `enable_thinking` for instance.

    parts  it wants contents as lists of parts, as some templates of vision models do
    """

    def __init__(self, tokenizer: Any, text: str, kwargs: Mapping[str, Any], parts: bool = False) -> None:
        self.tokenizer, self.text, self.kwargs, self.parts = tokenizer, text, dict(kwargs), parts

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), answer: bool = True) -> str:
        """The text of `messages`, up to where the next action begins if `answer`.

        `ModelError` with the template's own words where it refuses them.
        """
        try:
            return self.tokenizer.apply_chat_template(
                [in_parts(m) if self.parts else dict(m) for m in messages],
                tools=[dict(t) for t in tools] or None,
                chat_template=self.text,
                add_generation_prompt=answer,
                tokenize=False,
                **self.kwargs,
            )
        except Exception as error:  # a template is code of somebody else's and may raise anything
            said = " ".join(str(error).split()) or type(error).__name__
            roles = ", ".join(str(m.get("role")) for m in messages[-6:])
            more = "..., " if len(messages) > 6 else ""
            raise ModelError(f"the chat template refuses the messages ({more}{roles}): {said}") from error


def in_parts(message: Message) -> dict[str, Any]:
    content = message.get("content")
    return {**message, **({"content": [{"type": "text", "text": content}]} if isinstance(content, str) else {})}


def source(tokenizer: Any, template: str | Path | None) -> str:
    """The Jinja text of `template`: itself, a file's, or (None) the tokenizer's own."""
    if template is None:
        own = tokenizer.chat_template
        if isinstance(own, dict):
            own = own.get("default")
        if not own:
            raise ModelError("the tokenizer has no chat template: give one (template=FILE.jinja), or template='none'")
        return own
    if isinstance(template, str) and ("{%" in template or "{{" in template):
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"the chat template {str(template)!r} is neither Jinja text nor a readable file") from error


def has_template(tokenizer: Any) -> bool:
    own = getattr(tokenizer, "chat_template", None)
    return bool(own.get("default") if isinstance(own, dict) else own)


def unused(word: str, *texts: str) -> str:
    """`word`, made longer until no text contains it."""
    while any(word in t for t in texts):
        word += "x"
    return word


def shared_prefix(a: str, b: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
