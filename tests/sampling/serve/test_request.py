"""Parsed calls: each field with values that no honest client sends, and the words of refusals."""

from __future__ import annotations

import json
from functools import partial

import pytest
from tests.sampling.serve.agent_session import CHAT, TOKENIZER

from gxpo.models.chat.plain import PlainChat
from gxpo.sampling.serve.history import History
from gxpo.sampling.serve.http import prepare_call
from gxpo.sampling.serve.request import POLICY, CallRequest, Refused, read, too_long

NASTY = [
    r'"\ud800"', r'"x\udfff"', r'{"\ud800": 1}', r'["\udc00"]', r'"\ud83d\ude00"', r'"\u0000"', '"\\u2028"',
    "true", "false", "null", "0", "-1", "1", "1.5", "1e400", "-1e999", "NaN", "Infinity", "1e-400",
    "1" + "0" * 30, "1" + "0" * 400, "1" + "0" * 5000, str(2**40), str(2**63), "99999",
    '""', '"x"', '"1"', f'"{"a" * 300}"', "[]", "[[]]", "[[[]]]", '["x"]', "[1]", "[true]", "[1.5]", "[-1]", "[null]",
    "[99999]", f"[{2**40}]", "[1, [2]]", "[{}]", '[{"role": []}]', "{}", '{"x": 1}', '{"type": "text"}',
    '{"a": 1, "a": 2}',
    "[" * 100 + "]" * 100, "[" * 100_000, "undefined", "01", "\udcff",
]  # fmt: skip
TOP = """model messages tools tool_choice n stop max_tokens max_completion_tokens stream stream_options logprobs
metadata return_token_ids temperature top_p top_k seed user store parallel_tool_calls presence_penalty min_p
frequency_penalty
repetition_penalty logit_bias response_format top_logprobs modalities best_of echo suffix min_tokens ignore_eos
guided_json structured_outputs chat_template_kwargs prompt_token_ids unknown"""
ONE = '[{"role": "user", "content": "1+1="}]'


def bodies():
    """Pairs (True for a chat, body with @ in place of a value)."""
    for name in TOP.split():
        yield True, f'{{"messages": {ONE}, "{name}": @}}' if name != "messages" else '{"messages": @}'
        yield False, f'{{"prompt": "1+1=", "{name}": @}}'
    for name in ("role", "content", "name", "tool_call_id", "tool_calls"):
        for role in ("user", "assistant", "tool"):
            yield True, f'{{"messages": [{{"role": "{role}", "content": "a", "{name}": @}}]}}'
    for name in ("type", "text"):
        yield True, f'{{"messages": [{{"role": "user", "content": [{{"type": "text", "text": "a", "{name}": @}}]}}]}}'
    tool = f'{{"messages": {ONE}, "tools": [%s]}}'
    yield True, tool % "@"
    for name in ("type", "function"):
        yield True, tool % f'{{"function": {{"name": "f"}}, "{name}": @}}'
    for name in ("name", "description", "parameters"):
        yield True, tool % f'{{"function": {{"name": "f", "{name}": @}}}}'
    for schema in ('{"properties": @}', '{"properties": {"a": @}}', '{"properties": {"a": {"type": @}}}', '{"x": @}'):
        yield True, tool % f'{{"function": {{"name": "f", "parameters": {schema}}}}}'
    call = f'{{"messages": [{ONE[1:-1]}, {{"role": "assistant", "tool_calls": [%s]}}]}}'
    yield True, call % "@"
    for name in ("id", "function"):
        yield True, call % f'{{"function": {{"name": "f", "arguments": "{{}}"}}, "{name}": @}}'
    for name in ("name", "arguments"):
        yield True, call % f'{{"function": {{"name": "f", "arguments": "{{}}", "{name}": @}}}}'
    yield True, call % r'{"function": {"name": "f", "arguments": "{\"a\": \"\\ud800\"}"}}'
    for name in ("agent", "state", "reward", "other"):
        yield True, f'{{"messages": {ONE}, "metadata": {{"{name}": @}}}}'
    yield True, f'{{"messages": {ONE}, "stream_options": {{"include_usage": @}}}}'
    for prompt in ("@", "[@]", "[[@]]", "[1, @]", '["a", @]'):
        yield False, f'{{"prompt": {prompt}}}'
    for stop in ("[@]", '["a", @]'):
        yield False, f'{{"prompt": "a", "stop": {stop}}}'
    yield True, "@"
    yield False, "@"


def body_of(template: str, value: str) -> bytes:
    return template.replace("@", value).encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("chat", [CHAT, PlainChat(TOKENIZER)], ids=["template", "plain"])
def test_each_field_is_read_or_refused(chat):
    """A call that is read gives token ids of the vocabulary, and names, numbers and texts that a record can hold."""
    history, failures, n_calls = History(chat, TOKENIZER, limit=4096), [], 0
    for is_chat, template in bodies():
        for value in NASTY:
            n_calls += 1
            try:
                call, drafts = prepare_call(history, bytearray(body_of(template, value)), partial(read, chat=is_chat))
                ids = [i for d in drafts for i in d.ids]
                assert ids and all(type(i) is int and 0 <= i < len(TOKENIZER) for i in ids)
                assert isinstance(call.agent, str) and isinstance(call.state, str | None)
                assert call.reward is None or abs(call.reward) < 1e308
                json.dumps([call.agent, call.state, call.order, call.model], ensure_ascii=False).encode()
            except Refused as refused:
                message = refused.body()["error"]["message"]
                if refused.status != 400 or "\n" in message or len(message) > 300 or "Error:" in message:
                    failures.append((template, value[:40], refused.status, message))
            except Exception as error:
                failures.append((template, value[:40], repr(error)[:200]))
    assert not failures, failures[:5]
    assert n_calls > 5000


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"messages": [{"role": [], "content": "x"}]}', "messages[0] has no role that is known"),
        (b'{"messages": [{"role": "user", "content": "x"}], "stop": 5}', "stop is a text or a list"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', r"half a surrogate pair, \ud800"),
        (b'{"messages": [{"role": "user", "content": "x"}], "user": {"\\udfff": 1}}', r"half a surrogate pair, \udfff"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "byte 44 is not UTF-8"),
        (b'{"messages": [{"role": "user", "content": "x"}], "metadata": {"agent": ["x"]}}', "metadata.agent is a text"),
        (b'{"messages": [{"role": "user", "content": "x"}], "metadata": {"agent": 7}}', "metadata.agent is a text"),
        (b'{"messages": [{"role": "user", "content": "x"}], "metadata": {"state": {}}}', "metadata.state is a text"),
        (b'{"messages": [{"role": "user", "content": "x"}], "metadata": {"reward": 1' + b"0" * 400 + b"}}",
         "metadata.reward is 1000"),
        (b'{"messages": [{"role": "user", "content": "x"}], "metadata": {"reward": "1_0"}}', "reward is '1_0'"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e400}', "the number 1e400 is too large"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": 1, "n": 2}', "the key 'n' stands twice"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field_and_the_limit(body, words):
    with pytest.raises(Refused) as caught:
        prepare_call(History(CHAT, TOKENIZER), bytearray(body), partial(read, chat=True))
    assert words in str(caught.value) and caught.value.status == 400


@pytest.mark.parametrize("ids", [[99999], [2**32], [2**40], [10**30], [2**62], [len(TOKENIZER)], [5, 387]])
def test_token_ids_outside_the_vocabulary_are_refused(ids):
    assert len(TOKENIZER) == 387
    with pytest.raises(Refused, match=r"prompt has the token id .*; there are 0 to 386"):
        prepare_call(
            History(CHAT, TOKENIZER), bytearray(json.dumps({"prompt": ids}).encode()), partial(read, chat=False)
        )
    prepare_call(History(CHAT, TOKENIZER), bytearray(b'{"prompt": [386]}'), partial(read, chat=False))


def test_a_chat_is_parsed_with_defaults():
    body = {"messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": None}]}
    system = {"role": "system", "content": "Be brief."}
    assert read(body, chat=True) == CallRequest((system, {"role": "user", "content": ""}))


def test_all_that_a_call_can_set_is_read():
    tool = {"type": "function", "function": {"name": "add"}}
    metadata = {"agent": "planner", "state": "room 3", "reward": "0.5"}
    body = {
        "messages": [{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}],
        **{"tools": [tool], "tool_choice": "none", "n": 2, "stop": "END", "max_tokens": 5, "max_completion_tokens": 4},
        **{"logprobs": True, "return_token_ids": True, "stream": True, "stream_options": {"include_usage": True}},
        **{"model": "policy/other", "temperature": 0.5, "top_k": None, "seed": 3, "metadata": metadata},
    }
    assert read(body, chat=True) == CallRequest(
        messages=({"role": "user", "content": "a\nb"},),
        tools=(tool,),
        parse=False,
        n=2,
        stop=("END",),
        max_tokens=4,
        logprobs=True,
        token_ids=True,
        stream=True,
        usage=True,
        model="policy/other",
        overridden={"temperature": 0.5},
        agent="planner",
        state="room 3",
        reward=0.5,
    )


def test_the_model_names_the_agent_without_metadata():
    assert read({"prompt": "a", "model": "policy/critic"}, chat=False).agent == "critic"
    assert read({"prompt": "a", "model": "gpt-4o"}, chat=False).agent == "agent"
    assert read({"prompt": "a"}, chat=False).model == POLICY


def test_completions_take_texts_ids_and_lists_of_both():
    for prompt, parsed in (("a", ("a",)), ([1, 2], ((1, 2),)), ([[1], [2]], ((1,), (2,))), (["a", [1]], ("a", (1,)))):
        call = read({"prompt": prompt, "n": 3}, chat=False)
        assert call.prompts == parsed and call.size == 3 * len(parsed)


def test_tool_calls_of_a_client_become_mappings():
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    (message,) = read({"messages": [{"role": "assistant", "tool_calls": [call]}]}, chat=True).messages
    assert message["tool_calls"] == [{"id": "c1", "name": "add", "arguments": {"a": 1}}]


def test_calls_are_ordered_by_contents_alone():
    a, b = (read({"prompt": "a", "metadata": {"state": s}}, chat=False) for s in "xy")
    assert a.order == b.order != read({"prompt": "b"}, chat=False).order


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"), (503, "server_error")],
)
def test_refusals_have_the_form_of_openais_errors(status, kind):
    error = {"message": "no room", "type": kind, "param": "n", "code": "full"}
    assert Refused("no\nroom", status=status, param="n", code="full").body() == {"error": error}


def test_a_prompt_that_is_too_long_has_openais_code():
    refused = too_long("99 tokens", 64)
    assert (refused.status, refused.code) == (400, "context_length_exceeded") and "64 tokens" in str(refused)
