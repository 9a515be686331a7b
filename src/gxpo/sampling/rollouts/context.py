"""Context of an episode before its next action: the whole conversation, a window, or the policy's own summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gxpo.models.chat.messages import marked, messages_of, opened, with_system
from gxpo.parts.protocols import Chat, ContextUpdate, Conversation, EpisodeRules, Message

if TYPE_CHECKING:
    from gxpo.sampling.rollouts.wording import Wording

SUMMARISE = (
    "Before you go on: the conversation so far will be dropped. Write down briefly all that you need for the rest."
)
SUMMARY = "What you wrote down so far:"


@dataclass
class Context:
    """Running context of one episode under its rules.

    "full"     the conversation grows by every turn
    "window"   it is built anew each turn: the instructions, the last `window` exchanges (observation and answer), and
               the newest observation
    "summary"  it grows for `window` exchanges; then the policy is asked for a summary, an action like any other, and a
               new context begins with the instructions, that summary and the newest observation

    A `wording` is applied to the first user message of every context that is built.
    """

    chat: Chat
    rules: EpisodeRules
    instructions: str
    tools: Sequence[Any] = ()
    system: str | None = None
    conversation: Conversation | None = None
    exchanges: list[tuple[list[Message], list[Message]]] = field(default_factory=list)  # of this context
    observation: list[Message] = field(default_factory=list)  # the newest one
    summarising: bool = False
    rewritten: int = 0  # contexts that were built anew because the template rewrites earlier turns
    declined_rewrites: int = 0  # turns in which the template would have rewritten them, but was not allowed to
    wording: Wording | None = None

    def copy(self) -> Context:
        """Return an independent context at the same place."""
        twin = dataclasses.replace(self, exchanges=list(self.exchanges), observation=list(self.observation))
        twin.conversation = None if self.conversation is None else self.conversation.copy()
        return twin

    def open(self, observation: str | Sequence[Message]) -> ContextUpdate:
        """Start the first context from the first observation."""
        self.observation = messages_of(observation)
        return self._start(self.observation)

    def _start(self, messages: Sequence[Message], note: str = "") -> ContextUpdate:
        preface = f"{self.instructions}\n\n{note}".strip() if note else self.instructions
        # the wording goes on before the system message, which templates without that role put into the same message
        self._close_conversation()
        opening_messages = opened(preface, messages)
        opening_messages = opening_messages if self.wording is None else self.wording.of_messages(opening_messages)
        all_messages = with_system(self.chat, self.system, opening_messages)
        self.conversation = self.chat.start(all_messages, self.tools)
        return ContextUpdate(tuple(self.conversation.context), rebuilt=True)

    @property
    def ids(self) -> tuple[int, ...]:
        """Token ids that the next action is sampled under."""
        assert self.conversation is not None
        return tuple(self.conversation.context)

    def act(self, tokens: Sequence[int]) -> Any:
        """Append the sampled action; return the parsed `Reply`."""
        assert self.conversation is not None
        before = len(self.conversation.messages)
        reply = self.conversation.act(tokens)
        # a summary is no exchange with the environment: no later window shows it
        if not self.summarising:
            # an assistant's message that the action continues is part of the answer
            observation = self.observation[:-1] if _begins_answer(self.observation) else self.observation
            self.exchanges.append((observation, list(self.conversation.messages[before:])))
        return reply

    def observe(self, observation: str | Sequence[Message]) -> ContextUpdate:
        """Append the environment's observation, or rebuild the context around it, for the next action."""
        self.observation = messages_of(observation)
        assert self.conversation is not None
        # exchanges that have left the window are dropped for good
        if self.rules.context == "window":
            recent = self.exchanges[-self.rules.window :] if self.rules.window else []
            self.exchanges = list(recent)
            recent_messages = [m for observations, answers in recent for m in (*observations, *answers)]
            return self._start([*recent_messages, *self.observation])
        if self.rules.context == "summary" and len(self.exchanges) >= max(1, self.rules.window):
            self.summarising = True
            return self._append([*self.observation, {"role": "user", "content": SUMMARISE}])
        return self._append(self.observation)

    def _close_conversation(self) -> None:
        """End the conversation, and add its rewrites that were not allowed to the context's count."""
        self.declined_rewrites += getattr(self.conversation, "kept_against_template", 0)
        self.conversation = None

    def _append(self, messages: Sequence[Message]) -> ContextUpdate:
        assert self.conversation is not None
        opening = self.conversation.observe(_merge_messages(messages))
        self.rewritten += opening.rebuilt
        return opening

    def summarise(self, summary: str) -> ContextUpdate:
        """Begin a new context from the summary that the policy wrote when asked by `SUMMARISE`."""
        self.summarising, self.exchanges = False, []
        newest = self.observation
        if any(m["role"] != "user" for m in newest):  # a tool's answer is refused by templates without its call
            newest = [{"role": "user", "content": marked(newest)}]
        return self._start(newest, f"{SUMMARY}\n{summary}")


def _begins_answer(observation: Sequence[Message]) -> bool:
    """Return True if the observation ends with the beginning of the policy's own answer."""
    return bool(observation) and observation[-1]["role"] == "assistant"


def _merge_messages(messages: Sequence[Message]) -> list[Message]:
    """Join neighbouring user messages: many templates refuse two in a row."""
    merged_messages: list[Message] = []
    for message in messages:
        if merged_messages and merged_messages[-1]["role"] == message["role"] == "user":
            merged_messages[-1] = {
                **merged_messages[-1],
                "content": f"{merged_messages[-1]['content']}\n\n{message['content']}",
            }
        else:
            merged_messages.append(message)
    return merged_messages
