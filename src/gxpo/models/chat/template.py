"""Any chat template of transformers as a `Chat`: messages to tokens turn by turn, sampled ids left as they are.

The text that a template puts after an action is read off its own rendering. The whole history is rendered with the
action in it; if the text so far and the action are in it letter by letter, the rest is the next observation. Otherwise
the same history is rendered with a marker word in the action's place: the text behind the word is the observation, and
the text before it, read by the same parser as the action, shows if the template has only respelled the action (white
space, JSON layout, `True` for `true`) or has removed something from the history (thinking of earlier turns).

The package `renderers` reaches the same goal from the other side: it rewrites each model family's template by hand in
Python, which gives more (which token belongs to which message, images) for the families it knows, and for any other
template a fallback that can't extend a conversation. Here nothing is known of families, and nothing but the template is
needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gxpo.base import media
from gxpo.base.errors import ConfigError, GxpoError, ModelError
from gxpo.models.chat import tools as toolbox
from gxpo.models.chat.facts import facts_of_template, render_or_none, shows_pictures
from gxpo.models.chat.formats import TAGS, Format
from gxpo.models.chat.messages import (
    has_calls,
    normal_messages,
    pair_answers,
    with_arguments,
    with_tags,
    without_prefill,
)
from gxpo.models.chat.plain import RowsOf, Tokens
from gxpo.models.chat.reading import Reading, answer_opening, opened_by, read, same, split_thinking
from gxpo.models.chat.render import Template, shared_prefix, source, unused
from gxpo.parts.protocols import ContextUpdate, Message, Reply, ToolCall

MARK = "Q7mark7Z"


@dataclass(frozen=True)
class Action:
    """An action of the policy: `text` without the token `stop` that ended it (None: it was cut). The names of special
    tokens that it did not sample as such are `Tokens.typed`, in `reading` too.

    prefix   beginning of the answer that the policy continues: an assistant's message at the end of the prompt
    reading  of both
    """

    ids: tuple[int, ...]
    text: str
    stop: int | None
    reading: Reading
    prefix: str = ""

    @property
    def full_text(self) -> str:
        return self.prefix + self.text

    @property
    def text_ids(self) -> tuple[int, ...]:
        return self.ids if self.stop is None else self.ids[:-1]


@dataclass(frozen=True)
class Bridge:
    """Text between an action and the next one. `same`: "text", "meaning" or "" (the history was rewritten)."""

    text: str
    same: str


class TemplateConversation:
    """Conversation of `TemplateChat.start`.

    rebuilt                turns at which the context was built anew because the template rewrites its history
    kept_against_template  turns at which it does, and the context was appended to all the same
    respelled              turns at which the template writes the action in another way that says the same
    """

    def __init__(
        self, chat: TemplateChat, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.chat = chat
        messages, prefill = without_prefill([media.with_marks(m) for m in normal_messages(messages)])
        if not messages:
            raise ModelError(
                "the assistant's message stands alone: a conversation begins with the user's or the system's"
            )
        self.messages: list[Message] = list(messages)
        # counts of histories that the template changed, which a run reports
        self.rebuilt = self.kept_against_template = self.respelled = 0
        self._types = toolbox.types_of(tools)
        self._has_tools = bool(tools)
        typed = chat.tokens.typed  # what others wrote has no special tokens: those are the template's
        self._tools = tuple(typed(list(tools))) if chat.tools_format == "native" else ()  # messages for the template
        self._template_messages, text = self._opening(messages, tools)
        self._prefix = self._prefill(text, prefill)
        # the prefix is not sampled, but the answer is read with it
        self._text = text + self._prefix
        self._actions: list[Action] = []
        self._action_message: Message = {}  # the last action's message, as given to the template
        self._waits_for_action = True
        self._calls = 0
        self.context: tuple[int, ...] = chat.tokens.encode(self._text)

    def _opening(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[list[Message], str]:
        """First messages in the form that the template takes, and its text of them."""
        chat = self.chat
        opening_messages = chat.tokens.typed(chat.opening_messages(messages, tools))
        try:
            text = chat.template.render(opening_messages, self._tools)
        except ModelError:
            if not any(m.get("tool_calls") for m in opening_messages):
                raise
            # the strictest templates (Mistral's) refuse other ids, so they are renumbered only where a template refuses
            # some templates want ids of nine letters and digits
            renumbered = pair_answers(opening_messages, renumber=True)
            text = render_or_none(chat.template, *renumbered, tools=self._tools)
            if text is None:
                raise
            opening_messages = renumbered
        # a template that drops calls in silence would show the model results that nobody asked for
        for call in (c for m in opening_messages for c in m.get("tool_calls", ())):
            if call["function"]["name"] not in text:
                raise ModelError(
                    f"the chat template leaves out the call of {call['function']['name']!r} in the history: "
                    "chat.tools=tags writes calls as text"
                )
        return list(opening_messages), text

    def _prefill(self, text: str, prefill: str) -> str:
        """Text behind the template's if the policy continues an assistant's message; else empty."""
        return answer_opening(text, self.chat.tokens.typed(prefill), self.chat.facts.header) if prefill else ""

    def copy(self) -> TemplateConversation:
        """Independent copy of the conversation."""
        twin = object.__new__(TemplateConversation)
        twin.__dict__.update(self.__dict__)
        for name in ("messages", "_template_messages", "_actions"):
            setattr(twin, name, list(getattr(self, name)))
        return twin

    def act(self, tokens: Sequence[int]) -> Reply:
        """Append the sampled ids as they are, end-of-turn token included, and return the parsed action."""
        if not self._waits_for_action:
            raise GxpoError("two actions in a row: observe() something (an empty list is possible) between them")
        # parse the answer with its prefix, since calls and thoughts may begin in it
        ids = tuple(int(t) for t in tokens)
        text, stop = self.chat.tokens.split_stop(ids, self.chat.stop_ids)
        prefix = self._prefix
        # a thought that the prompt opens has no opening tag in the answer, prefix included
        opened = opened_by(self._text[: len(self._text) - len(prefix)])
        whole_reading = reading = self.chat.read(prefix + text, self._types, self._has_tools, opened)
        if prefix:  # the reply is what was sampled; a thought that the prefix opens is open in it
            inside = split_thinking(prefix, opened).close
            sampled_reading = self.chat.read(text, self._types, self._has_tools, inside)
            reading = sampled_reading if len(sampled_reading.calls) == len(whole_reading.calls) else whole_reading
        calls = tuple(self._with_id(c) for c in whole_reading.calls)
        # the ids stay as sampled: the learner must see the very tokens whose log-probabilities were recorded
        self._actions.append(Action(ids, text, stop, whole_reading, prefix))
        self.context += ids
        self._action_message = self._message(self._actions[-1], whole_reading.body, calls)
        clean, plain = self.chat.tokens.without_special, self.chat.tokens.plain
        self.messages.append(plain(self._action_message))
        self._waits_for_action = False
        thinking = clean(reading.reasoning) if reading.reasoning is not None else None
        calls = tuple(ToolCall(plain(c.name), plain(c.arguments), c.id, c.error) for c in calls)
        return Reply(clean(reading.content), thinking, calls)

    def _with_id(self, call: ToolCall) -> ToolCall:
        """Number a call: an id of nine letters and digits, as the strictest templates want."""
        self._calls += 1
        return ToolCall(call.name, call.arguments, f"call{self._calls - 1:05d}", call.error)

    def _message(self, action: Action, body: str, calls: Sequence[ToolCall]) -> Message:
        """Action in the structured form that templates expect; `body`: its content without thinking."""
        reading, key = action.reading, self.chat.facts.reasoning_key
        # blanks that the template itself writes before an answer would be doubled when it is rendered again
        message: dict[str, Any] = {"role": "assistant", "content": body.removeprefix(self.chat.facts.lead)}
        if reading.reasoning is not None and key is not None:
            message[key] = reading.reasoning
        elif reading.reasoning is not None and reading.lead:  # the template knows thinking as text only, if at all
            joined = f"{reading.lead}\n\n{body}" if body else reading.lead
            message["content"] = action.full_text if body == reading.raw else joined
        # only calls that could be read are structured; the others stay as text in the body
        if well_formed := toolbox.structured(calls, self.chat.facts.arguments_as_json):
            message["tool_calls"] = well_formed
        return message

    def _forms(self) -> list[Message]:
        """Forms of the last action for the template: as in the messages, else as it was written."""
        action = self._actions[-1]
        if self.chat.tools_format == "tags":  # calls by tags are text of the content
            return [self._message(action, action.reading.raw, ())]
        raw_message: Message = {"role": "assistant", "content": action.full_text}
        message = self._action_message
        return [message] if message == raw_message else [message, raw_message]

    def observe(self, messages: Sequence[Message]) -> ContextUpdate:
        """Append the template's text between the last action and the next one.

        `ModelError` where the template refuses the messages, in its own words.
        """
        if self._waits_for_action:
            raise GxpoError("observe() comes after act(): messages before the first action belong to start()")
        # render the whole history: the template's text behind the action is the observation
        action = self._actions[-1]
        # a last message of the assistant's begins the next action
        messages, prefill = without_prefill([media.with_marks(m) for m in normal_messages(messages)])
        messages = toolbox.with_call_ids(messages, self._last_calls())
        form, new, text = self._render_history(self.chat.tokens.typed(self.chat.later_messages(messages)))
        prefix = self._prefill(text, prefill)
        bridge = self._bridge(form, new, text)
        before = self.context
        # a rewritten history either gives a new context, or the context that the policy saw stays
        rebuild = not bridge.same and self.chat.rewrites == "rebuild"
        if rebuild:
            self.context = ids = self._rebuild_ids(text + prefix)
            self.rebuilt += 1
        # training on tokens needs a context that is what the policy saw plus the observation, and nothing else
        else:
            ids = self.chat.tokens.encode_after(bridge.text + prefix, action.stop)
            self.context = before + ids
            self.kept_against_template += not bridge.same
            self.respelled += bridge.same == "meaning"
            # the invariant of the whole class: earlier tokens are a prefix of the new context
            if self.context[: len(before)] != before or before[len(before) - len(action.ids) :] != action.ids:
                raise GxpoError("a conversation has lost tokens that the policy had seen: please report the template")
        self.messages += messages
        self._template_messages += [form, *new]
        self._prefix, self._text = prefix, text + prefix
        self._waits_for_action = True
        return ContextUpdate(ids, rebuild)

    def _last_calls(self) -> list[ToolCall]:
        calls = self._actions[-1].reading.calls
        first = self._calls - len(calls)
        return [ToolCall(c.name, c.arguments, f"call{first + i:05d}", c.error) for i, c in enumerate(calls)]

    def _render_history(self, messages: Sequence[Message]) -> tuple[Message, list[Message], str]:
        """Form of the last action that the template accepts, the new messages, and the whole text."""
        # templates differ in what they accept for one action, so its forms are tried from the most structured to plain
        # text
        refusals = []
        for form in self._forms():
            # a template without the role tool gets results in a user message
            bare = "tool_calls" not in form and not self.chat.facts.bare_answers
            new = toolbox.as_user(messages) if bare or self.chat.tools_format == "tags" else list(messages)
            try:
                return form, new, self._render([form, *new])
            except ModelError as error:
                refusals.append(error)
        # the first form is the one that was meant: its refusal names the real reason
        raise refusals[0]

    def _render(self, more: Sequence[Message], answer: bool = True) -> str:
        return self.chat.template.render([*self._template_messages, *more], self._tools, answer)

    def _bridge(self, form: Message, new: Sequence[Message], text: str) -> Bridge:
        """Text between the last action and the next one, if the action is in the history letter by letter."""
        action = self._actions[-1]
        visible_text = self._text + action.text
        # the usual case: the template writes the action as it was sampled
        if text.startswith(visible_text):
            rest = text[len(visible_text) :]
            if action.stop is None:
                return Bridge(rest, "text")
            # the stop token was sampled already, so the template's own one must not be added a second time
            closing = self.chat.closing(action.stop)
            if closing is not None and (end := closing.match(rest)):
                is_own_stop = end[0] == self.chat.tokens.text_of(action.stop)
                return Bridge(rest[end.end() :], "text" if is_own_stop else "meaning")
        return self._bridge_by_mark(form, new, text)

    def _bridge_by_mark(self, form: Message, new: Sequence[Message], text: str) -> Bridge:
        """Text between the last action and the next one, found with a marker word in the action's place."""
        action = self._actions[-1]
        # a word that is nowhere else stands for the action, which the template may respell or strip
        tail = self._after_mark(form, new, text)
        # where the tail is not how the text ends, the template wrote the action otherwise, and its history can't be
        # compared
        aligned = text.endswith(tail)
        history = text[: len(text) - len(tail)]
        is_kept = aligned and self._has_same_meaning(history)
        closing = self.chat.closing(action.stop)
        end = closing.match(tail) if closing is not None else None
        # the sampled stop token stands for the template's end of turn
        if action.stop is not None:
            tail = tail[end.end() :] if end else tail
        # an action cut within a thought has to be closed, or the observation would be part of the thought
        elif action.reading.close is not None:
            tail = self._thought_end(history if is_kept else "") + tail
        return Bridge(tail, "meaning" if is_kept else "")

    def _after_mark(self, form: Message, new: Sequence[Message], text: str) -> str:
        """Text of the template after an action, found with a marker word at the action's end."""
        mark = unused(MARK, text)
        calls = form.get("tool_calls")
        # with calls the turn ends after the last argument and not after the content
        if calls:
            marked = self._render([{**form, "tool_calls": [*calls[:-1], self._marked_call(calls[-1], mark)]}, *new])
            _, separator, tail = marked.partition(mark)
            if separator:
                return self._after_call(tail)
        marked = self._render(
            [{"role": "assistant", "content": mark, **({"tool_calls": calls} if calls else {})}, *new]
        )
        _, separator, tail = marked.rpartition(mark)
        if not separator:
            raise ModelError(
                "the chat template does not write the text of an action: it can't be used for a conversation"
            )
        return tail

    def _marked_call(self, call: Any, mark: str) -> Any:
        name, arguments = call["function"]["name"], {"key": mark}
        as_json = self.chat.facts.arguments_as_json
        return {**call, **toolbox.structured([ToolCall(name, arguments, call["id"])], as_json)[0]}

    def _after_call(self, tail: str) -> str:
        """Cut off the closing text of the call itself, which the action has written or left out."""
        facts = self.chat.facts
        if facts.call_end and tail.startswith(facts.call_end):
            return tail[len(facts.call_end) :]
        ends = [i for e in facts.ends if (i := tail.find(e)) >= 0]
        return tail[min(ends) :] if ends else tail

    def _has_same_meaning(self, history: str) -> bool:
        """Return True if the history holds all that the policy saw, and an action that reads as the last one does."""
        action = self._actions[-1]
        before = self._text[: len(self._text) - len(action.prefix)]
        common = shared_prefix(history, before)
        if before[common:].strip():
            return False
        opened = opened_by(before[:common])
        return same(self.chat.read(history[common:], self._types, self._has_tools, opened), action.reading)

    def _thought_end(self, history: str) -> str:
        """Closing text of a thought that was cut: the template's, else the closing tag alone."""
        reading = self._actions[-1].reading
        thought = (reading.reasoning or "").strip()
        _, separator, rest = history.rpartition(thought) if thought else ("", "", "")
        if separator and reading.close is not None and reading.close in rest:
            return rest
        return f"\n{reading.close}\n\n"

    def _rebuild_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a text; an action that is still in it letter by letter keeps its sampled ids."""
        tokens = self.chat.tokens
        header = self.chat.facts.generation_prompt
        ids: tuple[int, ...] = ()
        position = 0
        for action in self._actions:
            # the header in front makes sure that it is a turn of the assistant's and no quotation of one
            place = text.find(header + action.full_text, position) if action.text else -1
            begin = place + len(header) + len(action.prefix)
            # dropped or rewritten by the template: its text is encoded like any other
            if place < 0 or begin < position:
                continue
            ids += self._piece(text[position:begin], position) + action.text_ids
            position = begin + len(action.text)
        return ids + (self._piece(text[position:], position) if text[position:] else tokens.encode(""))

    def _piece(self, text: str, at: int) -> tuple[int, ...]:
        return self.chat.tokens.encode_after(text) if at else self.chat.tokens.encode(text)


REWRITES = ("rebuild", "keep")
TOOL_FORMATS = ("auto", "native", "tags")


class TemplateChat:
    """Chat format of a template of transformers.

    tokenizer     of transformers, fast or not
    template      Jinja text or a file of it; None: the tokenizer's own
    kwargs        variables for the template (`enable_thinking`, `date_string`)
    rewrites      if the template rewrites the history: "rebuild" the context as the template has it, or
                  "keep" appending to the context; conversations count both
    tools_format  form of calls: "native" as the template writes them; "tags" as
                  `<tool>name({"key": value})</tool>`, which the first message then explains; "auto" is native where the
                  template shows tools and its calls can be read back
    stop          further tokens that end an action, by their text
    rows_of, picture  of a vision model, as of `Tokens`

    `ModelError` where the template can't be used so; the message quotes the template's own error.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str | Path | None = None,
        kwargs: Mapping[str, Any] | None = None,
        rewrites: str = "rebuild",
        tools_format: str = "auto",
        stop: Sequence[str] = (),
        rows_of: RowsOf | None = None,
        picture: str | None = None,
    ) -> None:
        if rewrites not in REWRITES:
            raise ConfigError(f"rewrites is 'rebuild' or 'keep', not {rewrites!r}")
        if tools_format not in TOOL_FORMATS:
            raise ConfigError(f"tools_format is one of {', '.join(TOOL_FORMATS)}, not {tools_format!r}")
        # the template's own markers become control tokens, which no user or tool can write
        self.tokenizer, self.rewrites = tokenizer, rewrites
        self.tokens = Tokens(tokenizer, rows_of, picture)
        self.template = Template(tokenizer, source(tokenizer, template), kwargs or {})
        self.facts = facts_of_template(self.template, self.tokens)
        self.tokens.guard(self.facts.frame)
        if picture in self.tokens.markers and shows_pictures(self.template, picture):
            self.template.picture = picture
            self.tokens.guard([picture])
        # native calls must be shown to the model and be read back from its tokens
        native = self.facts.form is not None and self.facts.shows_tools
        if tools_format == "native" and not native:
            lacking = "shows no tools" if not self.facts.shows_tools else "writes calls in a form that can't be read"
            raise ModelError(f"the chat template {lacking}: use tools_format='tags'")
        self._tags_by_choice = tools_format == "tags"
        self.tools_format = ("native" if native else "tags") if tools_format == "auto" else tools_format
        # the task's own stop texts must be one token each: sampling ends by id
        stops = [self.tokens.one_id(t) for t in (*self.facts.stops, *stop)]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(stops))
        self.tokens.frame(self.stop_ids)
        self._closing: dict[int | None, re.Pattern[str] | None] = {}
        self.settings = (rewrites, tools_format, stop, rows_of, picture)

    @property
    def form(self) -> Format | None:
        """Format of tool calls."""
        return TAGS if self.tools_format == "tags" else self.facts.form

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> TemplateConversation:
        """Start a conversation from the template's rendering of `messages` and `tools`."""
        if not messages:
            raise ModelError("a conversation starts with at least one message")
        return TemplateConversation(self, messages, tools)

    def read(self, text: str, types: Mapping[str, Mapping[str, str]], tools: bool, opened: str | None) -> Reading:
        """Parse an action; channels are read without tools, too, since they tell thinking from content."""
        form = self.form
        native = self.facts.form
        if form is TAGS and native is not None and native.channels:
            spoken = read(text, native, types, False)
            parsed = TAGS.find(spoken.content, types) if tools else None
            return replace(spoken, content=parsed.content, body=parsed.body, calls=parsed.calls) if parsed else spoken
        return read(text, form, types, tools, opened)

    def opening_messages(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Messages to render at the start: in the format "tags" they include instructions for the tools.

        Calls of the history are written as the template writes them, where it does and the policy is not asked for
        tags; else as tags, and their answers as a user's messages.
        """
        native = self.tools_format == "native"
        if native or (self.facts.writes_calls and not (tools or self._tags_by_choice)):
            messages = with_arguments(
                pair_answers(messages) if has_calls(messages) else messages, self.facts.arguments_as_json
            )
        else:
            messages = toolbox.as_user(with_tags(messages))
        return messages if native or not tools else toolbox.with_instructions(messages, tools, self.facts.system)

    def later_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Messages after an action, with the tool calls in them as the conversation writes calls."""
        return (
            with_arguments(messages, self.facts.arguments_as_json)
            if self.tools_format == "native"
            else with_tags(messages)
        )

    def closing(self, stop: int | None) -> re.Pattern[str] | None:
        """Pattern of an action's end at the beginning of a text, which an action that ends in `stop` has written."""
        if stop not in self._closing:
            stop_texts = [self.tokens.text_of(stop)] if stop is not None else []
            words = sorted({*self.facts.ends, *stop_texts}, key=len, reverse=True)
            self._closing[stop] = re.compile(rf"\s*({'|'.join(map(re.escape, words))})") if words else None
        return self._closing[stop]
