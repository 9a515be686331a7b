"""Contexts of episodes: opening messages, windows, summaries, and rewrites by the template."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gxpo.base.errors import ModelError
from gxpo.models.chat.messages import messages_of, opened, prompt_messages, text_of, with_system
from gxpo.parts.protocols import ContextUpdate, EpisodeRules, Reply
from gxpo.sampling.rollouts.context import SUMMARISE, SUMMARY, Context
from gxpo.sampling.rollouts.wording import Wording


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Conversation:
    """A message is one id, its number in the conversation; an action is an assistant message of its ids."""

    kept_against_template = 1

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = list(messages)

    @property
    def context(self) -> list[int]:
        return list(range(len(self.messages)))

    def act(self, tokens) -> Reply:
        text = " ".join(map(str, tokens))
        self.messages.append({"role": "assistant", "content": text})
        return Reply(text)

    def observe(self, messages) -> ContextUpdate:
        self.messages += messages
        return ContextUpdate((len(self.messages) - 1,))


class Chat:
    """Keeps the messages of every conversation that it started."""

    def __init__(self, system: bool = True) -> None:
        self.facts = SimpleNamespace(system=system)
        self.started: list[list[dict[str, Any]]] = []

    def start(self, messages, tools=()) -> Conversation:
        self.started.append(list(messages))
        return Conversation(messages)


def context(rules: EpisodeRules, **fields: Any) -> Context:
    chat: Any = Chat()
    return Context(chat, rules, "Play.", **fields)


def test_a_plain_string_is_one_user_message() -> None:
    assert messages_of("a door") == [user("a door")] and text_of([user("a"), user("b")]) == "a\nb"


def test_instructions_open_the_first_user_message() -> None:
    system = {"role": "system", "content": "s"}
    assert opened("Play.", [system, user("a"), user("b")]) == [system, user("Play.\n\na"), user("b")]
    assert opened("Play.", [system]) == [user("Play."), system] and opened("", [system]) == [system]


def test_a_template_without_system_role_gets_it_from_the_user() -> None:
    chat: Any = Chat(system=False)
    assert with_system(chat, "Be brief.", [user("a")]) == [user("Be brief.\n\na")]
    assert with_system(Chat(), "Be brief.", [user("a")])[0] == {"role": "system", "content": "Be brief."}  # type: ignore[arg-type]


def test_a_rendered_chat_refuses_prompts_that_are_messages() -> None:
    chat: Any = SimpleNamespace(is_rendered=True)
    with pytest.raises(ModelError, match="takes prompts that are texts"):
        prompt_messages(chat, None, [user("a")])


def test_a_full_context_goes_on() -> None:
    c = context(EpisodeRules(context="full"))
    assert c.open("a").rebuilt
    c.act([5])
    assert not c.observe("b").rebuilt and c.ids == (0, 1, 2) and len(c.chat.started) == 1  # type: ignore[attr-defined]


def test_a_window_shows_the_last_exchanges_and_the_observation() -> None:
    c = context(EpisodeRules(context="window", window=1))
    c.open("a")
    for action, observation in ((5, "b"), (6, "c")):
        c.act([action])
        assert c.observe(observation).rebuilt
    # of the two exchanges (a, 5) and (b, 6) the newest is shown, before the newest observation
    assert c.chat.started[-1] == [user("Play.\n\nb"), {"role": "assistant", "content": "6"}, user("c")]  # type: ignore[attr-defined]


def test_a_summary_is_asked_for_and_begins_the_next_context() -> None:
    c = context(EpisodeRules(context="summary", window=1))
    c.open("a")
    c.act([5])
    c.observe("b")
    assert c.summarising and c.conversation.messages[-1] == user(f"b\n\n{SUMMARISE}")  # type: ignore[union-attr]
    c.act([6])
    assert c.exchanges == [(messages_of("a"), [{"role": "assistant", "content": "5"}])]  # a summary is no exchange
    assert c.summarise("6").rebuilt and not c.summarising and c.exchanges == []
    assert c.chat.started[-1] == [user(f"Play.\n\n{SUMMARY}\n6\n\nb")]  # type: ignore[attr-defined]


def test_rewrites_that_were_declined_add_up_over_contexts() -> None:
    c = context(EpisodeRules(context="window", window=0))
    c.open("a")
    for action in (5, 6):
        c.act([action])
        c.observe("b")
    assert c.declined_rewrites == 2  # one for each of the two conversations that have ended


def test_a_wording_is_put_over_every_context() -> None:
    c = context(EpisodeRules(context="window", window=0), wording=Wording("{prompt} Hint: {hint}", {"hint": "h"}))
    c.open("a")
    c.act([5])
    c.observe("b")
    assert c.chat.started == [[user("Play.\n\na Hint: h")], [user("Play.\n\nb Hint: h")]]  # type: ignore[attr-defined]


def test_a_copy_goes_on_by_itself() -> None:
    c = context(EpisodeRules(context="window", window=2))
    c.open("a")
    Conversation.copy = lambda self: Conversation(self.messages)  # type: ignore[attr-defined]
    twin = c.copy()
    twin.act([5])
    assert len(twin.exchanges) == 1 and c.exchanges == [] and c.ids == (0,)
