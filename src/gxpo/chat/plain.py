"""Plain-text conversations for base models: texts, one after the other, without a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.chat import tools as toolbox
from gxpo.chat.formats import TAGS
from gxpo.chat.reading import read
from gxpo.errors import GxpoError, ModelError
from gxpo.protocols import ContextUpdate, Message, Reply, ToolCall
from gxpo.tokens import Tokens


class PlainChat:
    """Plain text: the texts of the first messages, joined by newlines, after the tokenizer's bos. Later ones are
    appended as they are, so any separator between an action and the next observation, e.g. a newline, is part of the
    observation. The name of a special token in one of them stays text.

    An action ends at eos. Roles are not written. Calls have the form `<tool>name({"key": value})</tool>`.
    """

    tools_format = "tags"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.tokens = Tokens(tokenizer)
        eos = self.tokens.eos
        self.stop_ids: tuple[int, ...] = () if eos is None else (eos,)

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> PlainConversation:
        """Start a conversation: bos, if the tokenizer has one, and the texts."""
        if not messages:
            raise ModelError("a conversation starts with at least one message")
        return PlainConversation(self, messages, tools)


class PlainConversation:
    """Conversation of `PlainChat.start`; its context is only ever appended to."""

    rebuilt = kept_against_template = respelled = 0

    def __init__(self, chat: PlainChat, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.chat = chat
        self.messages: list[Message] = list(messages)
        self._has_tools = bool(tools)
        self._calls: tuple[ToolCall, ...] = ()
        self._count = 0
        self._waits_for_action = True
        shown = toolbox.with_instructions(messages, tools, True) if tools else list(messages)
        self.context: tuple[int, ...] = chat.tokens.bos + chat.tokens.encode(chat.tokens.typed(joined(shown)))

    def copy(self) -> PlainConversation:
        """Independent copy of the conversation."""
        twin = object.__new__(PlainConversation)
        twin.__dict__.update(self.__dict__)
        twin.messages = list(self.messages)
        return twin

    def act(self, tokens: Sequence[int]) -> Reply:
        """Append the sampled ids as they are, and return the parsed action."""
        if not self._waits_for_action:
            raise GxpoError("two actions in a row: observe() something (an empty list is possible) between them")
        ids = tuple(int(t) for t in tokens)
        text, _ = self.chat.tokens.split_stop(ids, self.chat.stop_ids)
        reading = read(text, TAGS, {}, self._has_tools)
        plain = self.chat.tokens.plain
        calls = tuple(
            ToolCall(plain(c.name), plain(c.arguments), f"call{self._count + i:05d}", c.error)
            for i, c in enumerate(reading.calls)
        )
        self.context += ids
        self._calls, self._count, self._waits_for_action = calls, self._count + len(calls), False
        self.messages.append({"role": "assistant", "content": plain(text)})
        clean = self.chat.tokens.without_special
        thinking = clean(reading.reasoning) if reading.reasoning is not None else None
        return Reply(clean(reading.content), thinking, calls)

    def observe(self, messages: Sequence[Message]) -> ContextUpdate:
        """Append texts; tool results are put between `<tool_result>` and `</tool_result>`."""
        if self._waits_for_action:
            raise GxpoError("observe() comes after act(): messages before the first action belong to start()")
        messages = toolbox.answered(messages, self._calls)
        ids = self.chat.tokens.encode_after(self.chat.tokens.typed(joined(messages)))
        self.context += ids
        self.messages += messages
        self._waits_for_action = True
        return ContextUpdate(ids)


def joined(messages: Sequence[Message]) -> str:
    """Texts of messages, joined by newlines."""
    if any(m.get("role") == "tool" for m in messages):
        messages = toolbox.as_user(messages)
    return "\n".join([str(m.get("content") or "") for m in messages])
