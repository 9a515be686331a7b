"""Parameters that change how tokens are drawn: as they are read, and the words of refusals."""

from __future__ import annotations

import json

import pytest
from tests.sampling.serve.agent_session import ADD, CHAT, TOKENIZER, user

from gxpo.models.chat.call_grammar import call_grammar
from gxpo.models.chat.plain import PlainChat
from gxpo.parts.protocols import TokenOptions
from gxpo.sampling.serve import messages, responses
from gxpo.sampling.serve.history import History
from gxpo.sampling.serve.request import Refused, read

ASK = [user("hi")]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def options(**fields):
    return read({"messages": ASK, **fields}, chat=True).options


def test_a_call_without_options_has_none():
    neutral = {"presence_penalty": 0, "min_p": 0.0, "repetition_penalty": 1, "logit_bias": {}, "min_tokens": 0}
    assert options() is None and options(**neutral, ignore_eos=False, response_format={"type": "text"}) is None
    assert options(top_logprobs=None, logprobs=True) is None


def test_each_option_is_read():
    fields = {
        **{"logit_bias": {"7": 1, "3": -100}, "presence_penalty": 0.5, "frequency_penalty": -1, "min_p": 0.1},
        **{"repetition_penalty": 1.2, "min_tokens": 3, "ignore_eos": True, "logprobs": True, "top_logprobs": 5},
    }
    assert options(**fields) == TokenOptions(((3, -100.0), (7, 1.0)), 0.5, -1.0, 1.2, 0.1, 3, True, None, 5)
    assert read({"prompt": "a", "logprobs": 4}, chat=False).options == TokenOptions(top_logprobs=4)
    assert read({"prompt": "a", "logprobs": 0}, chat=False).options is None
    assert read({"prompt_token_ids": [1, 2]}, chat=False).prompts == ((1, 2),)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logit_bias": {"x": 1}}, "logit_bias has 'x': a token id"),
        ({"logit_bias": {"1": 101}}, "a number from -100 to 100"),
        ({"logit_bias": [1]}, "logit_bias is an object"),
        ({"presence_penalty": 3}, "presence_penalty is a number from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is a number from 0.01 to 100"),
        ({"min_p": True}, "min_p is a number from 0 to 1"),
        ({"min_tokens": -1}, "min_tokens is a whole number"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens=9 is above max_tokens"),
        ({"min_tokens": 1, "stop": "x"}, "min_tokens=1 can't be kept to beside stop texts"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs: true"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs is a whole number from 0 to 20"),
        ({"response_format": {"type": "yaml"}}, "response_format has the type text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format has no"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs is an object with one of"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_json and guided_regex are both set"),
        ({"guided_choice": []}, "guided_choice is a list of 1 to 256 texts"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos forbids the end of a reply"),
        ({"prompt_token_ids": [1]}, "prompt_token_ids has no place beside messages"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs is an object"),
        ({"tools": [ADD], "tool_choice": {"function": {"name": "sub"}}}, "names no tool of the call: 'sub'"),
        ({"tool_choice": "required"}, "tool_choice demands a call, and there are no tools"),
    ],
)  # fmt: skip
def test_what_can_not_be_obeyed_is_refused(fields, words):
    with pytest.raises(Refused) as caught:
        read({"messages": ASK, **fields}, chat=True)
    assert (
        words in str(caught.value) and caught.value.status == 400 and caught.value.param in {*fields, "response_format"}
    )


def test_a_schema_that_can_not_be_enforced_is_refused_with_its_reason():
    pytest.importorskip("llguidance")
    for schema, reason in (
        ({"type": "array", "uniqueItems": True}, 'Unimplemented keys: ["uniqueItems"]'),
        ({"$ref": "#/nope"}, "does not exist"),
        ({"type": "string", "pattern": "(a"}, "unclosed group"),
    ):
        with pytest.raises(Refused, match="response_format can't be followed") as caught:
            options(response_format={"type": "json_schema", "json_schema": {"schema": schema}})
        assert reason in str(caught.value)


def test_formats_of_all_apis_are_one_grammar():
    pytest.importorskip("llguidance")
    expected = ("json", json.dumps(SCHEMA))
    assert (
        options(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True}}).grammar
        == expected
    )
    for fields in (
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
    ):
        assert options(**fields).grammar == expected
    format_ = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    assert responses.read({"input": "hi", "text": {"format": format_}}).options.grammar == expected
    claude = {"messages": ASK, "max_tokens": 9}
    assert messages.read({**claude, "output_config": {"format": format_}}).options.grammar == expected
    assert messages.read({**claude, "output_format": format_}).options.grammar == expected
    assert options(guided_choice=["a", 'b"']).grammar == ("choice", '["a", "b\\""]')


def test_calls_that_are_demanded_name_their_tools():
    other = {"type": "function", "function": {"name": "sub"}}

    def demanded(**fields):
        call = read({"messages": ASK, "tools": [ADD, other], **fields}, chat=True)
        return call.must_call, call.several_calls

    assert demanded() == ((), False) and demanded(tool_choice="none") == ((), False)
    assert demanded(tool_choice="required") == (("add", "sub"), True)
    assert demanded(tool_choice="required", parallel_tool_calls=False) == (("add", "sub"), False)
    named = {"type": "function", "function": {"name": "sub"}}
    assert demanded(tool_choice=named) == (("sub",), False)
    flat = [{"type": "function", "name": "add"}]
    assert responses.read(
        {"input": "hi", "tools": flat, "tool_choice": {"type": "function", "name": "add"}}
    ).must_call == ("add",)
    claude = {"messages": ASK, "max_tokens": 9, "tools": [{"name": "add", "input_schema": {}}]}
    assert messages.read({**claude, "tool_choice": {"type": "any"}}).must_call == ("add",)
    assert messages.read({**claude, "tool_choice": {"type": "tool", "name": "add"}}).must_call == ("add",)


def test_grammars_of_calls_are_those_of_the_chat_format():
    llguidance = pytest.importorskip("llguidance")
    for chat, opens in ((CHAT, "<tool_call>"), (PlainChat(TOKENIZER), "<tool>")):
        kind, source = call_grammar(chat, [ADD], several=True)
        assert kind == "lark" and opens in source
        assert llguidance.LLMatcher.validate_grammar(source) == ""
    assert call_grammar(object(), [ADD], several=False)[1].startswith("start: call\n")


def test_a_bias_of_ids_outside_the_vocabulary_is_refused():
    call = read({"messages": ASK, "logit_bias": {"99999": 1}}, chat=True)
    with pytest.raises(Refused, match="logit_bias has the token id 99999; there are 0 to 386"):
        History(CHAT, TOKENIZER).drafts(call)
