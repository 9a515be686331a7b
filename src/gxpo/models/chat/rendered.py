"""Prompts that hold a rendered chat template: a chat that takes them as they are, and warnings that find them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.models.chat.facts import Facts, facts_of_template
from gxpo.models.chat.markers import ENDS, turns_in
from gxpo.models.chat.plain import PlainConversation, Tokens
from gxpo.models.chat.reading import opened_by
from gxpo.models.chat.render import Template, has_template, source
from gxpo.parts.protocols import ContextUpdate, Message, Task

RENDERED = "rendered"  # the value of chat.template
NAMED = 3  # markers and tasks that a warning names


class RenderedChat:
    """Prompts that are texts in the model's own format: control tokens in them are tokens, and nothing is put around.

    The tokenizer's first token comes before a prompt that does not begin with it. An answer ends at the tokens of the
    tokenizer's template, or, without one, at those that well-known templates end a turn with. There is one answer.
    """

    tools_format = "tags"
    is_rendered = True

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.tokens = Tokens(tokenizer)
        self.template_text = source(tokenizer, None) if has_template(tokenizer) else ""
        facts = _facts_of(tokenizer, self.tokens, self.template_text)
        ends = [self.tokens.markers[name] for name in _ends(self.tokens, facts)]
        eos = [] if self.tokens.eos is None else [self.tokens.eos]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys((*eos, *ends)))
        self.tokens.frame((*self.stop_ids, *(self.tokens.markers[m] for m in (facts.frame if facts else ()))))

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> RenderedConversation:
        """Start from one message of the user's: the whole text up to the answer."""
        if tools:
            raise ModelError("chat.template=rendered: tools are part of a rendered prompt, and can't be added to it")
        # roles and turns are in the text already, so more than one message has no place in it
        if len(messages) != 1 or messages[0].get("role") != "user" or not isinstance(messages[0].get("content"), str):
            raise ModelError(
                "chat.template=rendered takes prompts that are texts, one each; messages are rendered by a template: "
                "leave chat.template at auto"
            )
        if media.MARK[0] in messages[0]["content"]:
            raise ModelError("chat.template=rendered: a rendered prompt can't show a picture")
        return RenderedConversation(self, messages[0]["content"])


class RenderedConversation(PlainConversation):
    """Conversation of `RenderedChat.start`: a prompt and its answer."""

    def __init__(self, chat: RenderedChat, text: str) -> None:
        self.chat = chat  # type: ignore[assignment]  # of a plain chat it uses tokens and stop_ids, which this has
        self.messages: list[Message] = [{"role": "user", "content": text}]
        self._prefix, self._has_tools, self._calls, self._count, self._waits_for_action = "", False, (), 0, True
        self._opened = opened_by(text)
        bos, ids = chat.tokens.bos, chat.tokens.encode(text)
        self.context = ids if bos and ids[: len(bos)] == bos else bos + ids

    def observe(self, messages: Sequence[Message]) -> ContextUpdate:
        """Refuse: what comes after the answer would have to be rendered."""
        raise ModelError(
            "chat.template=rendered: a rendered prompt has one answer; a conversation of several turns needs messages "
            "and a template (chat.template=auto)"
        )


def _facts_of(tokenizer: Any, tokens: Tokens, template: str) -> Facts | None:
    """Properties of the tokenizer's own template; None where it has none that can be read."""
    try:
        return facts_of_template(Template(tokenizer, template, {}), tokens) if template else None
    except ModelError:
        return None


def _ends(tokens: Tokens, facts: Facts | None) -> list[str]:
    return [name for name in (ENDS if facts is None else facts.stops) if name in tokens.markers]


# ---------------------------------------------------------------- recognition
@dataclass(frozen=True)
class Markup:
    """Markers in a prompt's text. is_rendered: they begin turns, else they are control tokens that are mentioned."""

    names: tuple[str, ...]
    is_rendered: bool


def markup_of(text: str, chat: Any = None) -> Markup | None:
    """Markers of a chat template in a text: of the chat's own model, and of well-known families; None without any."""
    # turns of well-known families are found without a tokenizer, so that a data set can be checked before a model is
    # chosen
    turns = turns_in(text)
    facts: Facts | None = getattr(chat, "facts", None)
    tokens: Tokens | None = getattr(chat, "tokens", None)
    if not turns and facts is not None:
        turns = _turns_of(text, facts)
    if turns:
        return Markup(turns, True)
    if tokens is None:
        return None
    # single control tokens are weaker evidence than turns: a text may speak about them
    names = tuple(dict.fromkeys(tokens.control_in(text)))
    return Markup(names, False) if names else None


def _turns_of(text: str, facts: Facts) -> tuple[str, ...]:
    """Generation prompt at the end of a text, for templates with markers of no well-known family."""
    opening = facts.generation_prompt.strip()
    if len(opening) > 2 and re.search(r"\W", opening) and text.rstrip().endswith(opening):
        return (opening,)
    return ()


def prompt_warnings(tasks: Iterable[Task], chat: Any = None, template: str = "auto") -> list[str]:
    """Warnings about prompts with markers that a run would not read as their author meant.

    chat      of the model; None: look for markers of well-known templates alone
    template  chat.template of the run
    """
    # prompts that are texts and prompts that are messages need different remedies
    markup_by_kind: dict[str, list[tuple[str, Markup | None]]] = {}
    for task in tasks:
        for kind, text in _texts(task):
            markup_by_kind.setdefault(kind, []).append((task.id, markup_of(text, chat)))
    if template == RENDERED:
        return _rendered_warnings(markup_by_kind.get("text", []), chat)
    # markers that begin turns were meant as tokens; single control tokens are more likely mentioned in the text
    out = []
    for kind, remedy in (
        ("text", "set chat.template=rendered, which takes them as they are, or give messages"),
        ("message", "give the prompt as one text with chat.template=rendered, or as messages without markers"),
    ):
        marked = [(name, m) for name, m in markup_by_kind.get(kind, ()) if m is not None]
        if rendered := [(name, m) for name, m in marked if m.is_rendered]:
            out.append(
                f"{_count(rendered)} a rendered chat template already ({_names(rendered)}): {_ids(rendered)}; a run "
                f"encodes these markers as letters, inside the template of the model if it has one: {remedy}"
            )
        if mentioned := [(name, m) for name, m in marked if not m.is_rendered]:
            out.append(
                f"{_count(mentioned)} names of special tokens ({_names(mentioned)}): {_ids(mentioned)}; they are "
                "encoded as letters, and never as the tokens (chat.template=rendered takes texts as they are)"
            )
    return out


def _rendered_warnings(prompts: Sequence[tuple[str, Markup | None]], chat: Any) -> list[str]:
    """Warnings about prompts under chat.template=rendered."""
    out = []
    if unmarked := [name for name, markup in prompts if markup is None]:
        out.append(
            f"{len(unmarked)} prompt(s) hold no marker of a chat template: {_some(unmarked)}; chat.template=rendered "
            "puts none around them: leave it at auto, or render them"
        )
    # markers of another family would be letters to this model, and it would answer as to plain text
    foreign = [
        (name, Markup(unknown_names, True))
        for name, markup in prompts
        if markup is not None and (unknown_names := tuple(n for n in markup.names if not _is_known(n, chat)))
    ]
    if foreign:
        out.append(
            f"{_count(foreign)} markers that are no tokens of this model ({_names(foreign)}): {_ids(foreign)}; they "
            "were rendered for another one"
        )
    return out


def _is_known(turn: str, chat: RenderedChat | None) -> bool:
    """Return True if the marker that begins a turn is one of the chat's model: a token, or text of its template."""
    if chat is None:
        return True
    marker = turn[: re.search(r"[>\]]|$", turn).end()]  # type: ignore[union-attr]  # it finds at least the end
    return marker in chat.tokens.markers or marker in chat.template_text


def _texts(task: Task) -> list[tuple[str, str]]:
    """Texts of a prompt: ("text", all of it) or ("message", a message's content)."""
    prompt = task.prompt
    if isinstance(prompt, str):
        return [("text", prompt)]
    contents = [m.get("content") for m in prompt if isinstance(m, Mapping)]
    return [("message", text) for text in contents if isinstance(text, str)]


def _count(prompts: Sequence[tuple[str, Markup]]) -> str:
    return f"{len({name for name, _ in prompts})} prompt(s) hold"


def _names(prompts: Sequence[tuple[str, Markup]]) -> str:
    names = dict.fromkeys(name for _, markup in prompts for name in markup.names)
    return ", ".join([*names][:NAMED])


def _ids(prompts: Sequence[tuple[str, Markup]]) -> str:
    return _some([*dict.fromkeys(name for name, _ in prompts)])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
