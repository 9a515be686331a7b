"""OpenAI's Responses API and Anthropic's Messages API: replies, events, conversations that continue, refusals."""

from __future__ import annotations

import json

import pytest
from tests.sampling.serve.agent_session import ADD, CALL, CHAT, HTTP, TOKENIZER, post
from tests.sampling.serve.test_http import serving
from tests.sampling.serve.test_request import NASTY, body_of

from gxpo.sampling.serve import messages, responses
from gxpo.sampling.serve.history import History
from gxpo.sampling.serve.http import prepare_call
from gxpo.sampling.serve.request import Refused

FLAT_ADD = {"type": "function", **ADD["function"]}  # of the Responses API
CLAUDE_ADD = {"name": "add", "description": "Adds.", "input_schema": ADD["function"]["parameters"]}
TALK = f"I add.\n{CALL}"


def two_turns(read, key):
    return "It is 2." if "<tool_response>" in read else TALK


def events_of(answer):
    """Data of server-sent events, in order."""
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


# ---------------------------------------------------------------- Responses
def test_a_response_and_its_next_turn_are_one_context():
    with serving(two_turns) as (url, attempt, _):
        talk = [{"role": "user", "content": [{"type": "input_text", "text": "1+1?"}]}]
        first = post(url, "sk-1", "/responses", input=talk, tools=[FLAT_ADD], instructions="Be brief.").json()
        text, call = first["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "2"}
        second = post(
            url, "sk-1", "/responses", input=[*talk, text, call, result], tools=[FLAT_ADD], instructions="Be brief."
        ).json()
    assert (first["object"], first["status"], first["instructions"]) == ("response", "completed", "Be brief.")
    assert text["content"][0]["text"].strip() == "I add." and call["type"] == "function_call"
    assert (call["name"], json.loads(call["arguments"])) == ("add", {"a": 1, "b": 1})
    assert second["output"][0]["content"][0]["text"] == "It is 2." and len(second["output"]) == 1
    before, after = attempt.history.turns()
    assert TOKENIZER.decode(before["context"]).startswith("<|im_start|>system\nBe brief.")
    assert "context" not in after and "<tool_response>\n2\n</tool_response>" in TOKENIZER.decode(after["observation"])
    assert second["usage"]["output_tokens"] == len(after["action"])


def test_events_of_a_response():
    with serving(lambda read, key: TALK) as (url, _, _):
        events = events_of(post(url, "sk-1", "/responses", input="1+1?", tools=[FLAT_ADD], stream=True))
    kinds = [e["type"].removeprefix("response.") for e in events]
    assert kinds == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done", "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert [e["sequence_number"] for e in events] == list(range(13))
    assert events[4]["delta"].strip() == "I add." and events[-1]["response"]["output"][1]["name"] == "add"


def test_a_response_that_is_cut_is_incomplete():
    with serving(lambda read, key: "one two three four five") as (url, _, _):
        body = post(url, "sk-1", "/responses", input="count", max_output_tokens=2).json()
    assert body["status"] == "incomplete" and body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["usage"]["output_tokens"] == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported here: send the whole conversation"),
        ({"background": True}, "background is not supported here"),
        ({"tools": [{"type": "web_search"}]}, "tools[0] has the type 'web_search': only functions"),
        ({"text": {"format": {"type": "yaml"}}}, "response_format has the type text, json_object or json_schema"),
        ({"input": [{"type": "computer_call_output"}]}, "input[0] has the type 'computer_call_output'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "only text can be read",
        ),
        ({"include": ["file_search_call.results"]}, "include is a list of"),
        ({"frobnicate": 1}, "unknown parameter 'frobnicate'"),
        ({"input": []}, "input is a text or a list of 1 to 4096 items"),
    ],
)
def test_a_response_that_can_not_be_made_is_refused(fields, words):
    with pytest.raises(Refused) as caught:
        responses.read({"input": "hi", **fields})
    assert words in str(caught.value) and caught.value.status == 400


# ---------------------------------------------------------------- Messages
def claude(url, **body):
    return HTTP.post(f"{url}/messages", json={"max_tokens": 64, **body}, headers={"x-api-key": "sk-1"})


def test_a_message_and_its_next_turn_are_one_context():
    with serving(two_turns) as (url, attempt, _):
        asked = {"role": "user", "content": "1+1?"}
        fields = {"model": "claude-x", "tools": [CLAUDE_ADD], "system": [{"type": "text", "text": "Be brief."}]}
        first = claude(url, messages=[asked], **fields).json()
        use = first["content"][1]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "2"}]}
        reply = {"role": "assistant", "content": first["content"]}
        second = claude(url, messages=[asked, reply, {"role": "user", "content": [result]}], **fields).json()
        counted = HTTP.post(
            f"{url}/messages/count_tokens", json={"messages": [asked], **fields}, headers={"x-api-key": "sk-1"}
        ).json()
    assert (first["type"], first["model"], first["stop_reason"]) == ("message", "claude-x", "tool_use")
    assert first["content"][0]["text"].strip() == "I add." and use["input"] == {"a": 1, "b": 1}
    assert second["content"] == [{"type": "text", "text": "It is 2."}] and second["stop_reason"] == "end_turn"
    before, after = attempt.history.turns()
    assert "context" not in after and "<tool_response>\n2\n</tool_response>" in TOKENIZER.decode(after["observation"])
    assert counted == {"input_tokens": len(before["context"])} and first["usage"]["input_tokens"] == len(
        before["context"]
    )


def test_events_of_a_message():
    with serving(lambda read, key: TALK) as (url, _, _):
        asked = [{"role": "user", "content": "1+1?"}]
        events = events_of(claude(url, messages=asked, tools=[CLAUDE_ADD], stream=True))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [e["type"] for e in events] == ["message_start", *block, *block, "message_delta", "message_stop"]
    assert events[2]["delta"]["text"].strip() == "I add."
    assert json.loads(events[5]["delta"]["partial_json"]) == {"a": 1, "b": 1}
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_the_reason_of_a_message_s_end():
    with serving(lambda read, key: "one two; three four") as (url, _, _):
        asked = [{"role": "user", "content": "count"}]
        by_text = claude(url, messages=asked, stop_sequences=["three", ";"]).json()
        by_length = claude(url, messages=asked, max_tokens=2).json()
    assert (by_text["stop_reason"], by_text["stop_sequence"]) == ("stop_sequence", ";")
    assert by_text["content"] == [{"type": "text", "text": "one two"}]
    assert (by_length["stop_reason"], by_length["usage"]["output_tokens"]) == ("max_tokens", 2)


def test_errors_have_the_form_of_their_api():
    with serving(lambda read, key: "x") as (url, _, _):
        refused = claude(url, messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
        unknown = HTTP.post(f"{url}/messages", json={}, headers={"x-api-key": "sk-2"})
        plain = post(url, "sk-1", "/responses", input=5)
    assert refused.status_code == 400 and refused.json() == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "messages[0].content[0] has the type 'image', which can't be read here in the user's message",
        },
    }
    assert unknown.status_code == 401 and unknown.json()["error"]["type"] == "authentication_error"
    assert plain.status_code == 400 and plain.json()["error"]["param"] == "input"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0] has the type 'bash_20250124'"),
        ({"tool_choice": {"type": "first"}}, "tool_choice is"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0] has no role that is known"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "name": "f"}]}]}, "the type 'tool_use'"),
        ({"container": "c"}, "unknown parameter 'container'"),
        ({"max_tokens": 0}, "max_tokens is a whole number"),
    ],
)
def test_a_message_that_can_not_be_made_is_refused(fields, words):
    with pytest.raises(Refused) as caught:
        messages.read({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **fields})
    assert words in str(caught.value) and caught.value.status == 400


# ---------------------------------------------------------------- values that no honest client sends
def bodies():
    """Pairs of a reader and a body with @ in place of a value."""
    yield responses.read, '{"input": "1+1=", "max_output_tokens": @}'
    yield messages.read, '{"messages": [{"role": "user", "content": "1"}], "stop_sequences": [@]}'
    for name in ("input", "instructions", "tools", "tool_choice", "text", "include", "reasoning", "metadata", "store"):
        yield responses.read, f'{{"input": "1+1=", "{name}": @}}' if name != "input" else '{"input": @}'
    for name in ("type", "role", "content", "call_id", "name", "arguments", "output", "summary"):
        for kind in ("message", "function_call", "function_call_output", "reasoning"):
            item = f'{{"role": "assistant", "type": "{kind}", "name": "f", "arguments": "{{}}", "{name}": @}}'
            yield responses.read, f'{{"input": [{item}]}}'
    yield responses.read, '{"input": [{"role": "user", "content": [@]}]}'
    yield responses.read, '{"input": "a", "tools": [{"type": "function", "name": @, "parameters": @}]}'
    one = '[{"role": "user", "content": "1+1="}]'
    for name in ("messages", "system", "tools", "tool_choice", "thinking", "metadata", "max_tokens", "top_k"):
        yield messages.read, f'{{"messages": {one}, "{name}": @}}' if name != "messages" else '{"messages": @}'
    for kind in ("text", "tool_use", "tool_result", "thinking"):
        for name in ("type", "text", "id", "name", "input", "tool_use_id", "content"):
            block = f'{{"type": "{kind}", "text": "a", "name": "f", "input": {{}}, "{name}": @}}'
            for role in ("user", "assistant"):
                yield messages.read, f'{{"messages": [{{"role": "{role}", "content": [{block}]}}]}}'
    yield messages.read, f'{{"messages": {one}, "tools": [{{"name": @, "description": @, "input_schema": @}}]}}'


def test_each_field_is_read_or_refused():
    history, failures, n_calls = History(CHAT, TOKENIZER, limit=4096), [], 0
    for read, template in bodies():
        for value in NASTY:
            n_calls += 1
            try:
                call, drafts = prepare_call(history, bytearray(body_of(template, value)), read)
                assert all(0 <= i < len(TOKENIZER) for d in drafts for i in d.ids) and call.messages
                json.dumps([call.order, dict(call.echo)], ensure_ascii=False).encode()
            except Refused as refused:
                message = refused.body()["error"]["message"]
                if refused.status != 400 or "\n" in message or len(message) > 300 or "Error:" in message:
                    failures.append((template, value[:40], refused.status, message))
            except Exception as error:
                failures.append((template, value[:40], repr(error)[:200]))
    assert not failures, failures[:5]
    assert n_calls > 5000
