"""Conversations over all families: what was sampled stays, what the template adds follows, rewrites are counted."""

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.chat.families import FAMILIES, tokenizer_of
from tests.models.chat.writers import TOOLS, action_text

from gxpo.models.chat.template import TemplateChat

USER = {"role": "user", "content": "hello there, what is the answer?"}
NEXT = {"role": "user", "content": "and now?"}
PIECES = ["a", "there", " the", "  ", "\n", "{", "}", '"', "\\", "é", "🙂", "\u200b", "ASSISTANT:", "<b>", "4.0", "'"]
MARKUP = [
    "<think>",
    "</think>",
    "<|im_end|>",
    "</s>",
    "<tool_call>",
    "[INST]",
    "<|end|>",
    "<tool>",
    "Q7mark7Z",
    "<|user|>",
]
WORD = "zqxj"  # stands in actions and nowhere else

user_text = st.lists(st.sampled_from(PIECES + MARKUP), max_size=8).map("".join)
said_text = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
arguments = st.fixed_dictionaries(
    {"key": st.lists(st.sampled_from(["a", "there", " ", "é", "}", '"', ","]), min_size=1, max_size=5).map("".join)},
    optional={"count": st.integers(-3, 30), "deep": st.booleans()},
)
call_lists = st.lists(st.tuples(st.sampled_from(["look", "find.all"]), arguments), max_size=2)
turns = st.tuples(
    st.sampled_from(["plain", "plain", "think", "call", "broken"]), said_text, call_lists, st.booleans(), user_text
)


def spell(name: str, text: str, seed: int) -> list[int]:
    """Ids of `text` as a policy may sample them: pieces of random length, each in the tokenizer's own spelling."""
    tokenizer, rng = tokenizer_of(name), random.Random(seed)
    markers = [str(t.content) for t in tokenizer.added_tokens_decoder.values()]
    ids, at = [], 0
    while at < len(text):
        marker = max((m for m in markers if text.startswith(m, at)), key=len, default="")
        length = len(marker) or rng.randint(1, 4)
        length = min([length, *(i - at for m in markers if (i := text.find(m, at + 1)) > 0)]) if not marker else length
        ids += tokenizer(text[at : at + length], add_special_tokens=False).input_ids
        at += length
    return ids


def chat_of(name: str, rewrites: str = "rebuild", **options) -> TemplateChat:
    return TemplateChat(tokenizer_of(name), rewrites=rewrites, **options) if options else _chat(name, rewrites)


@cache
def _chat(name: str, rewrites: str) -> TemplateChat:
    return TemplateChat(tokenizer_of(name), rewrites=rewrites)


def decoded(chat: TemplateChat, ids) -> str:
    return chat.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def rendered(chat: TemplateChat, messages, tools=()) -> str:
    """The template's own text, without any of our code."""
    if chat.template.text == PARTS:
        messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    return chat.tokenizer.apply_chat_template(
        messages, tools=list(tools) or None, add_generation_prompt=True, tokenize=False, **chat.template.kwargs
    )


def end_of(chat: TemplateChat) -> int:
    """The token with which a policy of this family ends a plain answer."""
    return chat.stop_ids[0] if len(chat.stop_ids) == 1 or "return" in chat.facts.stops[0] else chat.stop_ids[1]


PARTS = FAMILIES["parts"].template
ALL = sorted(FAMILIES)
EXACT = [n for n in ALL if FAMILIES[n].exact]


@pytest.mark.parametrize("name", ALL)
def test_the_context_at_the_start_is_the_templates(name):
    chat = chat_of(name)
    talk = chat.start([USER])
    assert decoded(chat, talk.context) == rendered(chat, [USER])
    assert list(talk.context) == chat.tokenizer(rendered(chat, [USER]), add_special_tokens=False).input_ids


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("cut", [False, True])
def test_plain_answers_give_the_templates_own_text(name, cut):
    chat = chat_of(name)
    talk = chat.start([USER])
    thought = "hm" if chat.facts.opens_reasoning else None
    form = FAMILIES[name].form
    for i, answer in enumerate(["the answer is four", '{"x": [1]}', "ééé"]):
        action = spell(name, action_text(form, answer, thought, [], chat.facts.opens_reasoning), i)
        talk.act(action + ([] if cut else [end_of(chat)]))
        talk.observe([NEXT])
    assert talk.respelled == talk.kept_against_template == 0
    assert talk.rebuilt == (3 if thought else 0)
    assert decoded(chat, talk.context) == rendered(chat, talk.messages)


@pytest.mark.parametrize("name", ALL)
def test_naive_retokenisation_would_change_the_action(name):
    chat = chat_of(name, rewrites="keep")
    talk = chat.start([USER])
    action = [*spell(name, "the answer is there, then the other", 3), end_of(chat)]
    start = len(talk.context)
    talk.act(action)
    talk.observe([NEXT])
    full_input_ids = chat.tokenizer(decoded(chat, talk.context), add_special_tokens=False).input_ids
    assert full_input_ids[start : start + len(action)] != action
    assert list(talk.context[start : start + len(action)]) == action


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=max(15, settings().max_examples // 3))  # of each family
@given(seed=st.integers(0, 999), opening=user_text, plan=st.lists(turns, min_size=1, max_size=4), keep=st.booleans())
def test_random_conversations(name, seed, opening, plan, keep):
    family = FAMILIES[name]
    chat = chat_of(name, rewrites="keep" if keep else "rebuild")
    tools = TOOLS if family.form else []
    first = {"role": "user", "content": opening}
    talk = chat.start([first], tools)
    assert decoded(chat, talk.context) == rendered(chat, [first], tools)
    expected_rewrites = 0
    for number, (kind, content, calls, stops, text) in enumerate(plan):
        calls = calls if kind == "call" and family.form else []
        calls = calls if family.double else calls[:1]
        thought = f"{WORD}t{content}t" if kind == "think" else None
        action = action_text(family.form, f"{WORD}{content}", thought, calls, chat.facts.opens_reasoning)
        if kind == "broken" and family.form not in (None, "harmony"):
            good = action_text(family.form, "", None, [("look", {"key": "there"})], False)
            action = good[: len(good) // 2]
        ids = spell(name, action, seed + number)
        ids += [end_of(chat)] if stops else []
        before, counted = talk.context, talk.rebuilt + talk.kept_against_template
        reply = talk.act(ids)
        assert talk.context == before + tuple(ids)
        if calls:
            assert [(c.name, c.arguments, c.error) for c in reply.calls] == [(n, a, None) for n, a in calls]
        new = [{"role": "tool", "content": text} for _ in calls] or [{"role": "user", "content": text}]
        opened = talk.observe(new)
        rewritten = talk.rebuilt + talk.kept_against_template - counted
        if opened.rebuilt:
            assert talk.context == opened.ids
            assert decoded(chat, opened.ids) == rendered(chat, talk.messages, tools)
        else:
            assert talk.context == before + tuple(ids) + opened.ids
            assert WORD not in decoded(chat, opened.ids)
        if not family.drops:
            assert not rewritten
        elif thought is not None and not calls:
            assert rewritten == 1
        expected_rewrites += rewritten
    assert (talk.kept_against_template, talk.rebuilt) == ((expected_rewrites, 0) if keep else (0, expected_rewrites))
    if not (talk.respelled or talk.kept_against_template):
        assert decoded(chat, talk.context) == rendered(chat, talk.messages, tools)
