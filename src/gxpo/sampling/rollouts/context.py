"""What of an episode the policy sees before its next action: everything, a window, or a summary that it wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Chat, ContextUpdate, Conversation, EpisodeRules, Message

if TYPE_CHECKING:
    from gxpo.sampling.rollouts.wording import Wording

SUMMARISE = (
    "Before you go on: the conversation so far will be dropped. Write down briefly all that you need for the rest."
)
SUMMARY = "What you wrote down so far:"


def messages_of(observation: str | Sequence[Message]) -> list[Message]:
    """An observation as messages: a text is the user's. Pictures are marks in texts (`gxpo.base.media.marked`)."""
    if isinstance(observation, str):
        return [{"role": "user", "content": observation}]
    from gxpo.models.chat.messages import (
        normal_message,  # with the whole package of chats, which a method is made without
    )

    return [m if isinstance(m.get("content"), str) else media.with_marks(normal_message(m)) for m in observation]


def prompt_messages(chat: Chat, system: str | None, prompt: str | Sequence[Message]) -> list[Message]:
    """What a conversation about a prompt starts with: a text is a message of the user's."""
    if getattr(chat, "is_rendered", False) and not isinstance(prompt, str):
        raise ModelError(
            "chat.template=rendered takes prompts that are texts, and this one is messages, which a template renders: "
            "leave chat.template at auto"
        )
    return with_system(chat, system, messages_of(prompt))


def text_of(messages: Sequence[Message]) -> str:
    """What messages say, a line each, for people: pictures by name."""
    return "\n".join(media.text_of(m.get("content")) for m in messages)


def marked(messages: Sequence[Message]) -> str:
    """What messages say, a line each, with marks for pictures: to be said again."""
    return "\n".join(media.marked(m.get("content")) for m in messages)


def opened(instructions: str, messages: Sequence[Message]) -> list[Message]:
    """The messages with the instructions before the first of the user's."""
    if not instructions:
        return list(messages)
    for i, message in enumerate(messages):
        if message["role"] == "user":
            joined = {**message, "content": f"{instructions}\n\n{message['content']}"}
            return [*messages[:i], joined, *messages[i + 1 :]]
    return [{"role": "user", "content": instructions}, *messages]


def with_system(chat: Chat, system: str | None, messages: Sequence[Message]) -> list[Message]:
    """The messages after a system message; where the template has no such role, the user's first message says it."""
    if system is None:
        return list(messages)
    if getattr(getattr(chat, "facts", None), "system", True):
        return [{"role": "system", "content": system}, *messages]
    return opened(system, messages)


@dataclass
class Context:
    """The running context of one episode under its rules.

    In a window the context is built anew each turn: the instructions, the last `window` exchanges (observation and
    what was answered) and the newest observation. Under "summary" it grows for `window` exchanges; then the policy is
    asked for a summary, an action like any other, and a new context begins with the instructions, that summary and the
    newest observation. A `wording` is put over the user's first message of every context that is built.
    """

    chat: Chat
    rules: EpisodeRules
    instructions: str
    tools: Sequence[Any] = ()
    system: str | None = None
    conversation: Conversation | None = None
    exchanges: list[tuple[list[Message], list[Message]]] = field(default_factory=list)  # of this context
    observation: list[Message] = field(default_factory=list)  # the newest
    summarising: bool = False
    rewritten: int = 0  # contexts that were built anew because the template rewrites earlier turns
    kept: int = 0  # turns in which it would have rewritten them, had it been let to
    wording: Wording | None = None

    def copy(self) -> Context:
        """An independent context that has gone as far."""
        twin = dataclasses.replace(self, exchanges=list(self.exchanges), observation=list(self.observation))
        twin.conversation = None if self.conversation is None else self.conversation.copy()
        return twin

    def open(self, observation: str | Sequence[Message]) -> ContextUpdate:
        """The first context."""
        self.observation = messages_of(observation)
        return self._start(self.observation)

    def _start(self, messages: Sequence[Message], note: str = "") -> ContextUpdate:
        first = f"{self.instructions}\n\n{note}".strip() if note else self.instructions
        self._settle()
        said = opened(first, messages)
        said = said if self.wording is None else self.wording.of_messages(said)
        shown = with_system(self.chat, self.system, said)
        self.conversation = self.chat.start(shown, self.tools)
        return ContextUpdate(tuple(self.conversation.context), rebuilt=True)

    @property
    def ids(self) -> tuple[int, ...]:
        """What the next action is sampled under."""
        assert self.conversation is not None
        return tuple(self.conversation.context)

    def act(self, tokens: Sequence[int]) -> Any:
        """The sampled action is taken in; gives the `Reply`."""
        assert self.conversation is not None
        before = len(self.conversation.messages)
        reply = self.conversation.act(tokens)
        if not self.summarising:
            # an assistant's message that the action continues is part of the answer
            observation = self.observation[:-1] if _begins_answer(self.observation) else self.observation
            self.exchanges.append((observation, list(self.conversation.messages[before:])))
        return reply

    def observe(self, observation: str | Sequence[Message]) -> ContextUpdate:
        """What the environment said; the context then stands before the next action."""
        self.observation = messages_of(observation)
        assert self.conversation is not None
        if self.rules.context == "window":
            recent = self.exchanges[-self.rules.window :] if self.rules.window else []
            self.exchanges = list(recent)
            shown = [m for seen, answered in recent for m in (*seen, *answered)]
            return self._start([*shown, *self.observation])
        if self.rules.context == "summary" and len(self.exchanges) >= max(1, self.rules.window):
            self.summarising = True
            return self._appended([*self.observation, {"role": "user", "content": SUMMARISE}])
        return self._appended(self.observation)

    def _settle(self) -> None:
        """Counts what the conversation that ends here was not rewritten."""
        self.kept += getattr(self.conversation, "kept_against_template", 0)
        self.conversation = None

    def _appended(self, messages: Sequence[Message]) -> ContextUpdate:
        assert self.conversation is not None
        opening = self.conversation.observe(_joined(messages))
        self.rewritten += opening.rebuilt
        return opening

    def summarised(self, summary: str) -> ContextUpdate:
        """The policy has answered `SUMMARISE`: begin again from what it wrote."""
        self.summarising, self.exchanges = False, []
        now = self.observation
        if any(m["role"] != "user" for m in now):  # an answer of a tool can't stand without its call
            now = [{"role": "user", "content": marked(now)}]
        return self._start(now, f"{SUMMARY}\n{summary}")


def _begins_answer(observation: Sequence[Message]) -> bool:
    """Return True if the observation ends with the beginning of the policy's own answer."""
    return bool(observation) and observation[-1]["role"] == "assistant"


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Neighbouring messages of the user as one: many templates refuse two in a row."""
    out: list[Message] = []
    for message in messages:
        if out and out[-1]["role"] == message["role"] == "user":
            out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n\n{message['content']}"}
        else:
            out.append(message)
    return out
