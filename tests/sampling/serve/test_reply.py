"""Responses in OpenAI's format: bodies and server-sent events of chats and completions, by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from gxpo.parts.protocols import Completion, ContextUpdate
from gxpo.sampling.serve import reply
from gxpo.sampling.serve.history import Choice, Prompt
from gxpo.sampling.serve.request import CallRequest

USER = ({"role": "user", "content": "hi"},)
WORDS = {5: "good", 6: "bye", 7: "\u00e9"}


def decode(ids):
    return "".join(WORDS[i] for i in ids)


def choices(call, *samples):
    """Choices of one prompt of three tokens; samples are (message or None, text, tokens, finish)."""
    prompt = Prompt(call, ContextUpdate((1, 2, 3), rebuilt=True), (1, 2, 3), None, 0, "hi")
    return [
        Choice(message, text, Completion(tokens, [-0.5] * len(tokens), finish, policy_version=4), prompt)
        for message, text, tokens, finish in samples
    ]


def message_of(text, **more):
    return {"role": "assistant", "content": text, **more}


def test_a_chat_body_has_message_finish_and_usage():
    call = CallRequest(USER, model="policy/planner")
    samples = choices(call, (message_of("good"), "good", [5], "stop"), (message_of("bye"), "bye", [6, 7], "length"))
    body = reply.body(call, samples, decode)
    assert body.pop("id").startswith("chatcmpl-") and isinstance(body.pop("created"), int)
    assert body == {
        "object": "chat.completion",
        "model": "policy/planner",
        "system_fingerprint": "policy-4",
        "choices": [
            {"index": 0, "logprobs": None, "message": message_of("good"), "finish_reason": "stop"},
            {"index": 1, "logprobs": None, "message": message_of("bye"), "finish_reason": "length"},
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6},  # the shared prompt counts once
    }


def test_tool_calls_and_reasoning_are_fields_of_the_message():
    call = CallRequest(USER)
    message = message_of("", tool_calls=[{"id": "c1", "name": "add", "arguments": {"a": "\u00e9"}}], reasoning="hm")
    (entry,) = reply.body(call, choices(call, (message, "", [5], "stop")), decode)["choices"]
    function = {"name": "add", "arguments": '{"a": "\u00e9"}'}
    assert entry["finish_reason"] == "tool_calls" and entry["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        "reasoning_content": "hm",
    }


def test_logprobs_of_a_chat_list_every_token():
    call = CallRequest(USER, logprobs=True)
    (entry,) = reply.body(call, choices(call, (message_of("\u00e9"), "\u00e9", [7], "stop")), decode)["choices"]
    token = {"token": "\u00e9", "logprob": -0.5, "bytes": [0xC3, 0xA9], "top_logprobs": []}
    assert entry["logprobs"] == {"content": [token], "refusal": None}


def test_a_completion_has_text_logprobs_and_token_ids():
    call = CallRequest(None, ("hi",), logprobs=True, token_ids=True)
    body = reply.body(call, choices(call, (None, "goodbye", [5, 6], "stop")), decode)
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion"
    assert body["prompt_token_ids"] == [1, 2, 3]
    assert body["choices"] == [
        {
            "index": 0,
            "text": "goodbye",
            "finish_reason": "stop",
            "token_ids": [5, 6],
            "prompt_token_ids": [1, 2, 3],
            "logprobs": {
                "tokens": ["good", "bye"],
                "token_logprobs": [-0.5, -0.5],
                "top_logprobs": None,
                "text_offset": [0, 4],
            },
        }
    ]


def parsed(events):
    """Payloads of server-sent events; the last one is [DONE]."""
    lines = list(events)
    assert all(line.startswith("data: ") and line.endswith("\n\n") for line in lines)
    assert lines[-1] == "data: [DONE]\n\n"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_a_streamed_chat_sends_role_content_finish_and_usage():
    call = CallRequest(USER, usage=True)
    chunks = parsed(reply.events(call, choices(call, (message_of("good"), "good", [5], "stop")), decode))
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"} and len({c["id"] for c in chunks}) == 1
    role, content, finish = (c["choices"][0] for c in chunks[:3])
    assert role == {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    assert content == {"index": 0, "logprobs": None, "delta": {"content": "good"}, "finish_reason": None}
    assert finish == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert chunks[3]["choices"] == [] and chunks[3]["usage"]["total_tokens"] == 4


def test_streamed_tool_calls_are_numbered():
    call = CallRequest(USER)
    calls = [{"id": i, "name": "add", "arguments": {}} for i in ("c1", "c2")]
    chunks = parsed(reply.events(call, choices(call, (message_of("", tool_calls=calls), "", [5], "stop")), decode))
    assert [c["index"] for c in chunks[1]["choices"][0]["delta"]["tool_calls"]] == [0, 1]
    assert chunks[2]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_streamed_completion_is_one_chunk_for_each_sample():
    call = CallRequest(None, ("hi",), stream=True)
    samples = choices(call, (None, "good", [5], "stop"), (None, "bye", [6], "length"))
    chunks = parsed(reply.events(call, samples, decode))
    assert [c["choices"][0]["text"] for c in chunks] == ["good", "bye"]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == ["stop", "length"]


@pytest.mark.parametrize("entry", [reply.model(), reply.models()["data"][0]])
def test_the_policy_is_the_only_model(entry):
    assert entry == {"id": "policy", "object": "model", "created": 0, "owned_by": "gxpo"}
    assert len(reply.models()["data"]) == 1


def test_likeliest_tokens_stand_beside_the_sampled_one():
    (choice,) = choices(CallRequest(USER, logprobs=True), (message_of("good"), "good", [5], "stop"))
    listed = replace(choice.completion, top_ids=np.array([[6, 5, -1]]), top_logprobs=np.array([[-0.25, -0.5, -np.inf]]))
    choice = replace(choice, completion=listed)
    (row,) = reply.token_logprobs(choice, decode)
    assert [(t["token"], t["logprob"]) for t in row["top_logprobs"]] == [("bye", -0.25), ("good", -0.5)]
    call = CallRequest(None, ("hi",), logprobs=True)
    (entry,) = reply.body(call, [replace(choice, message=None)], decode)["choices"]
    assert entry["logprobs"]["top_logprobs"] == [{"good": -0.5, "bye": -0.25}]
