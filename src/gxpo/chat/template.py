"""Any chat template of transformers as a `Chat`: messages to tokens turn by turn, sampled ids left as they are.

What a template puts after an action is read off its own text. The whole history is rendered with the action in it; if
the text so far and the action stand in it letter by letter, the rest is the next observation. Otherwise the same
history is rendered with a marker word in the action's place: what follows the word is the observation, and what stands
before it, read by the same parser as the action, shows whether the template has only respelled the action (white space,
JSON layout, `True` for `true`) or has taken something out of the history (thinking of earlier turns).

The package `renderers` reaches the same goal from the other side: it rewrites each model family's template by hand in
Python, which gives more (which token belongs to which message, images) for the families it knows, and for any other
template a fallback that can't extend a conversation. Here nothing is known of families, and nothing but the template is
needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gxpo.chat import tools as toolbox
from gxpo.chat.conversation import TemplateConversation
from gxpo.chat.facts import find_out
from gxpo.chat.formats import TAGS, Format
from gxpo.chat.reading import Reading, read
from gxpo.chat.render import Template, source
from gxpo.errors import ConfigError, ModelError
from gxpo.protocols import Message
from gxpo.tokens import Tokens

REWRITES = ("rebuild", "keep")
TOOL_FORMATS = ("auto", "native", "tags")


class TemplateChat:
    """Conversations in the format of a chat template.

    tokenizer     of transformers, fast or not
    template      Jinja text or a file of it; None: the tokenizer's own
    kwargs        variables for the template (`enable_thinking`, `date_string`)
    rewrites      when the template changes what the policy has seen: "rebuild" the context as the template has it, or
                  "keep" appending to what was seen; conversations count both
    tools_format  how calls are written: "native" as the template writes them; "tags" as
                  `<tool>name({"key": value})</tool>`, which the first message then explains; "auto" is native where the
                  template shows tools and its calls can be read back
    stop          further tokens that end an action, by their text

    `ModelError` where the template can't be used so; the message has the template's own words.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str | Path | None = None,
        kwargs: Mapping[str, Any] | None = None,
        rewrites: str = "rebuild",
        tools_format: str = "auto",
        stop: Sequence[str] = (),
    ) -> None:
        if rewrites not in REWRITES:
            raise ConfigError(f"rewrites is 'rebuild' or 'keep', not {rewrites!r}")
        if tools_format not in TOOL_FORMATS:
            raise ConfigError(f"tools_format is one of {', '.join(TOOL_FORMATS)}, not {tools_format!r}")
        self.tokenizer, self.rewrites = tokenizer, rewrites
        self.tokens = Tokens(tokenizer)
        self.template = Template(tokenizer, source(tokenizer, template), kwargs or {})
        self.facts = find_out(self.template, self.tokens)
        self.tokens.guard(self.facts.frame)
        native = self.facts.form is not None and self.facts.shows_tools
        if tools_format == "native" and not native:
            lacking = "shows no tools" if not self.facts.shows_tools else "writes calls in a form that can't be read"
            raise ModelError(f"the chat template {lacking}: use tools_format='tags'")
        self.tools_format = ("native" if native else "tags") if tools_format == "auto" else tools_format
        stops = [self.tokens.one_id(t) for t in (*self.facts.stops, *stop)]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(stops))
        self._closing: dict[int | None, re.Pattern[str] | None] = {}

    @property
    def form(self) -> Format | None:
        """How calls are written."""
        return TAGS if self.tools_format == "tags" else self.facts.form

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> TemplateConversation:
        """A conversation whose context is the template's rendering of `messages` and `tools`."""
        if not messages:
            raise ModelError("a conversation starts with at least one message")
        return TemplateConversation(self, messages, tools)

    def read(self, text: str, types: Mapping[str, Mapping[str, str]], tools: bool, opened: str | None) -> Reading:
        """What an action says. Channels are read without tools too: they tell thinking from content."""
        form = self.form
        native = self.facts.form
        if form is TAGS and native is not None and native.channels:
            spoken = read(text, native, types, False)
            found = TAGS.find(spoken.content, types) if tools else None
            return replace(spoken, content=found.content, kept=found.kept, calls=found.calls) if found else spoken
        return read(text, form, types, tools, opened)

    def opening_messages(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
        """What the template is shown at the start: in the format "tags" the tools are explained in words."""
        if self.tools_format == "native":
            return list(messages)
        if tools:
            messages = toolbox.with_instructions(messages, tools, self.facts.system)
        return toolbox.as_user(messages)

    def closing(self, stop: int | None) -> re.Pattern[str] | None:
        """The end of an action at the beginning of a text: what an action that ended in `stop` has written itself."""
        if stop not in self._closing:
            own = [self.tokens.text_of(stop)] if stop is not None else []
            words = sorted({*self.facts.ends, *own}, key=len, reverse=True)
            self._closing[stop] = re.compile(rf"\s*({'|'.join(map(re.escape, words))})") if words else None
        return self._closing[stop]
