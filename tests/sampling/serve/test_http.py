"""HTTP endpoint: replies, events, errors, keys, records of each call; malformed, large and slow calls."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from tests.sampling.serve.agent_session import ADD, CALL, END, HTTP, TOKENIZER, ask, post, session, user
from tests.sampling.serve.test_request import NASTY, bodies, body_of

from gxpo.parts.protocols import StreamKey
from gxpo.sampling.rollouts.build import action
from gxpo.sampling.serve.history import History
from gxpo.sampling.serve.http import LARGEST, Server, prepare_call, read_outcome
from gxpo.sampling.serve.queue import Attempt, CallQueue, respond
from gxpo.sampling.serve.request import Refused


@contextmanager
def serving(say, **given):
    """The base URL, and the one attempt, under the key "sk-1"."""
    hosts = given.pop("hosts", frozenset())
    rollout_session = session(say, **given)
    queue = CallQueue(patience=0.0, most_calls=10_000)
    history = History(rollout_session.chat, TOKENIZER, limit=rollout_session.episode.max_context)
    attempt = Attempt("sk-1", 0, "one/0", StreamKey(0, 1, "one", 0), history)
    queue.open(attempt)
    server, over = Server(queue, rollout_session.decode, hosts=hosts), threading.Event()

    def answer() -> None:
        while not over.is_set():
            respond(queue, queue.take(time.monotonic() + 0.05), rollout_session, action)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield server.base_url, attempt, rollout_session.engine
    finally:
        over.set()
        thread.join()
        server.close()


def ids(text):
    return TOKENIZER(text, add_special_tokens=False).input_ids


def test_a_chat_completion():
    with serving(lambda read, key: "four words and more") as (url, attempt, engine):
        body = post(url, "sk-1", messages=[user("hi")], logprobs=True, return_token_ids=True, model="gpt-x").json()
    message = [*ids("four words and more"), END]
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.decode(body["prompt_token_ids"]).endswith(prompt)
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "four words and more"}
    assert choice["finish_reason"] == "stop" and choice["token_ids"] == message
    assert [row["logprob"] for row in choice["logprobs"]["content"]] == [-(k + 1) / 8 for k in range(len(message))]
    assert body["usage"]["completion_tokens"] == len(message) and body["usage"]["prompt_tokens"] == len(
        engine.requests[0].prompt
    )
    assert body["model"] == "gpt-x" and body["object"] == "chat.completion" and body["system_fingerprint"] == "policy-3"
    (turn,) = attempt.history.turns()
    assert turn["context"] == body["prompt_token_ids"] and turn["action"] == message and turn["policy_version"] == 3


def test_calls_of_tools_are_read_by_the_chat_format():
    with serving(lambda read, key: f"I add.\n{CALL}") as (url, _, _):
        answer = post(url, "sk-1", messages=[user("1+1?")], tools=[ADD], tool_choice="required").json()["choices"][0]
        plain = ask(url, "sk-1", [user("1+1?")], tools=[ADD], tool_choice="none")
    assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"].strip() == "I add."
    (call,) = answer["message"]["tool_calls"]
    assert call["type"] == "function" and call["function"] == {"name": "add", "arguments": '{"a": 1, "b": 1}'}
    assert "tool_calls" not in plain and "<tool_call>" in plain["content"]


def test_a_call_that_cant_be_read_is_text():
    with serving(lambda read, key: "<tool_call>\n{add(1)}\n</tool_call>") as (url, _, _):
        answer = ask(url, "sk-1", [user("1+1?")], tools=[ADD])
    assert "tool_calls" not in answer and "{add(1)}" in answer["content"]


def test_server_sent_events():
    with serving(lambda read, key: CALL if "tool" in read else "hello") as (url, _, _):
        body = {"messages": [user("hi")], "stream": True, "stream_options": {"include_usage": True}, "n": 2}
        plain = post(url, "sk-1", **body)
        called = post(url, "sk-1", messages=[user("a tool")], tools=[ADD], stream=True)
    assert plain.headers["content-type"].startswith("text/event-stream")
    *chunks, last = [line.removeprefix("data: ") for line in plain.text.split("\n\n") if line]
    assert last == "[DONE]"
    rows = [json.loads(c) for c in chunks]
    for index in (0, 1):
        own_choices = [r["choices"][0] for r in rows if r["choices"] and r["choices"][0]["index"] == index]
        assert "".join(c["delta"].get("content") or "" for c in own_choices) == "hello"
        assert own_choices[0]["delta"]["role"] == "assistant" and own_choices[-1]["finish_reason"] == "stop"
    assert rows[-1]["choices"] == [] and rows[-1]["usage"]["completion_tokens"] == 2 * len([*ids("hello"), END])
    deltas = [json.loads(x[6:])["choices"][0]["delta"] for x in called.text.split("\n\n")[:-2]]
    assert [c["index"] for d in deltas for c in d.get("tool_calls", [])] == [0]


def test_completions_continue_ids_and_end_at_stop_texts():
    says = iter(["think; act", "done"])
    with serving(lambda read, key: next(says)) as (url, attempt, engine):
        first = post(url, "sk-1", "/completions", prompt="Q: hi\n", stop=";", logprobs=1).json()["choices"][0]
        post(url, "sk-1", "/completions", prompt=f"Q: hi\n{first['text']}; seen\n")
    assert first["text"] == "think" and first["finish_reason"] == "stop"
    assert len(first["logprobs"]["tokens"]) == len(first["logprobs"]["token_logprobs"])
    begun, went_on = attempt.history.turns()
    # the ids that were sampled are read again as they were, with what was cut off; the stop text is not there twice
    assert went_on["observation"] == ids(" seen\n")
    assert engine.requests[1].prompt == (*begun["context"], *begun["action"], *went_on["observation"])


def test_completions_of_token_ids_and_of_several_prompts():
    with serving(lambda read, key: "x") as (url, attempt, engine):
        body = post(url, "sk-1", "/completions", prompt=[[5, 6, 7], [5, 6]], n=2).json()
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert [r.prompt for r in engine.requests] == [(5, 6, 7), (5, 6)]
    assert [t["context"] for t in attempt.history.turns()] == [[5, 6, 7], [5, 6, 7], [5, 6], [5, 6]]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", None),
        ({"messages": [{"role": "judge", "content": "x"}]}, "messages[0]", None),
        ({"messages": [user("x")], "frequency_penalty": 0.5}, "frequency_penalty", "unsupported_parameter"),
        ({"messages": [user("x")], "logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
        (
            {"messages": [user("x")], "response_format": {"type": "json_object"}},
            "response_format",
            "unsupported_parameter",
        ),
        ({"messages": [user("x")], "temprature": 1}, "temprature", "unknown_parameter"),
        ({"messages": [user("x")], "n": 0}, "n", None),
        ({"messages": [user("x")], "max_tokens": "many"}, "max_tokens", None),
        ({"messages": [user("x")], "tools": [{"type": "function"}]}, "tools", None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0]", None),
    ],
)
def test_unsupported_parameters_are_refused(body, param, code):
    with serving(lambda read, key: "x") as (url, attempt, engine):
        answer = post(url, "sk-1", **body)
        assert answer.status_code == 400 and engine.batches == []
        error = answer.json()["error"]
        assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
        assert ask(url, "sk-1", [user("x")])["content"] == "x" and attempt.calls == 1  # a refusal costs no reply


def test_neutral_and_meaningless_parameters_are_taken():
    with serving(lambda read, key: "x") as (url, attempt, _engine):
        body = {"presence_penalty": 0, "user": "me", "seed": 3, "response_format": {"type": "text"}, "stop": None}
        assert ask(url, "sk-1", [user("x")], temperature=0.2, top_p=0.5, **body)["content"] == "x"
    assert attempt.history.overridden == 1


def test_keys_and_routes():
    with serving(lambda read, key: "x") as (url, attempt, _):
        nobody = HTTP.post(f"{url}/chat/completions", json={"messages": [user("x")]})
        for answer in (post(url, "sk-2", messages=[user("x")]), nobody):
            assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
        root = url.removesuffix("/v1")
        by_path = HTTP.post(f"{root}/sk-1/v1/chat/completions", json={"messages": [user("x")]})
        assert by_path.status_code == 200
        assert HTTP.get(f"{root}/sk-1/v1/models").json()["data"][0]["id"] == "policy"
        assert HTTP.get(f"{root}/v1/nothing").json()["error"]["type"] == "invalid_request_error"
        broken = HTTP.post(f"{root}/sk-1/v1/chat/completions", content=b"{")
        assert broken.status_code == 400 and "not JSON" in broken.json()["error"]["message"]
        assert post(url, "sk-1", "/reward", reward=0.5).json() == {"ok": True} and attempt.outcome_body == {
            "reward": 0.5
        }


def test_a_prompt_that_is_too_long():
    with serving(lambda read, key: "x", max_context=40) as (url, attempt, engine):
        answer = post(url, "sk-1", messages=[user("long " * 50)])
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
        assert attempt.limit == "context" and engine.batches == []
        assert ask(url, "sk-1", [user("x")])["content"] == "x"


def test_a_reply_fits_into_the_context_and_into_max_tokens():
    with serving(lambda read, key: "a " * 100) as (url, _attempt, _):
        full_post = post(url, "sk-1", messages=[user("x")]).json()
        short = post(url, "sk-1", messages=[user("x")], max_tokens=3).json()
    assert full_post["usage"]["completion_tokens"] == 60 and full_post["choices"][0]["finish_reason"] == "length"
    assert short["usage"]["completion_tokens"] == 3


def test_a_client_that_goes_away_is_not_sampled_for():
    rollout_session = session(lambda read, key: "x")
    queue = CallQueue(patience=0.0, most_calls=9)
    attempt = Attempt("sk-1", 0, "one/0", StreamKey(0, 1, "one", 0), History(rollout_session.chat, TOKENIZER))
    queue.open(attempt)
    server = Server(queue, rollout_session.decode)
    try:
        with pytest.raises(Exception, match="timed out"):
            HTTP.post(
                server.base_url + "/chat/completions",
                json={"messages": [user("x")]},
                headers={"Authorization": "Bearer sk-1"},
                timeout=0.2,
            )
        until = time.monotonic() + 5
        while attempt.n_waiting and time.monotonic() < until:
            time.sleep(0.01)
        assert attempt.n_waiting == 0 and attempt.calls == 0 and queue.take(time.monotonic()) == []
    finally:
        queue.close()
        server.close()


# ---------------------------------------------------------------- hostile calls
@pytest.mark.parametrize(
    "posted",
    [
        b"1" + b"0" * 400, b"1e999", b"NaN", b"[1]", b"{", b"\xff", b"[" * 100_000, b'{"reward": {}}', b'{"score": 1}',
        b'{"reward": "one"}', b'{"reward": 1, "success": "no"}', b'{"answer": "\\ud800"}', b'{"info": {"\\ud800": 1}}',
        b'{"rewards": {"agent": 1}}', b'{"reward": 1, "reward": 0}', b'{"rewards": {"a": true, "": 1}}',
    ],
)  # fmt: skip
def test_an_invalid_outcome_is_refused_when_it_is_posted(posted):
    with pytest.raises(Refused) as caught:
        read_outcome(bytearray(posted))
    assert caught.value.status == 400 and "\n" not in str(caught.value)


def test_calls_after_a_malformed_one_are_answered():
    some = [template for _, template in bodies()][::3]
    with serving(lambda read, key: "x") as (url, attempt, _):
        connection = http.client.HTTPConnection("127.0.0.1", int(url.split(":")[2].split("/")[0]), timeout=20)
        statuses = set()
        for i, template in enumerate(some):
            path = "/v1/chat/completions" if "messages" in template else "/v1/completions"
            body = body_of(template, NASTY[i % len(NASTY)])
            connection.request("POST", path, body, {"Authorization": "Bearer sk-1"})
            answer = connection.getresponse()
            error = json.loads(answer.read()).get("error")
            assert answer.status in (200, 400) and (error is None or error["type"] == "invalid_request_error"), body
            statuses.add(answer.status)
        connection.close()
        assert statuses == {200, 400}
        for nonsense in (b"1e999", b'{"reward": 1' + b"0" * 400 + b"}"):
            headers = {"Authorization": "Bearer sk-1"}
            assert HTTP.post(f"{url}/reward", content=nonsense, headers=headers).status_code == 400
            assert attempt.post_error is not None
        post(url, "sk-1", "/reward", reward=1)
        assert attempt.outcome_body == {"reward": 1} and attempt.post_error is None
        assert ask(url, "sk-1", [user("x")])["content"] == "x"
        attempt.history.turns()


# ---------------------------------------------------------------- sizes and times
@pytest.mark.slow
def test_a_call_that_is_too_large_is_refused_at_once():
    """One call after the other: each of them would take a minute and more if it were put into tokens."""
    with serving(lambda read, key: "x", max_context=100) as (url, attempt, engine):
        for body, status, words in (
            ({"messages": [user("a" * 30_000_000)]}, 413, f"more than {LARGEST} bytes"),
            ({"messages": [user("a" * 8_000_000)]}, 400, "100 tokens, and the prompt has 8000000 characters"),
            ({"messages": [user("x")], "stop": [f"x{i}" for i in range(200_000)]}, 400, "at most 16 texts"),
            ({"messages": [user("x")], "stop": "a" * 1_000_000}, 400, "1 to 256 characters"),
            ({"messages": [user("x")] * 5000}, 400, "1 to 4096 messages"),
            ({"messages": [user("x")], "tools": [{"function": {"name": "f"}}] * 1000}, 400, "at most 256"),
        ):
            answer = post(url, "sk-1", **body)
            assert answer.status_code == status and words in answer.json()["error"]["message"], (words, answer.text)
        many = post(url, "sk-1", "/completions", prompt=["a"] * 100, n=2)
        assert many.status_code == 400 and "more than 128 samples" in many.text
        assert attempt.limit == "context" and engine.batches == []
        assert ask(url, "sk-1", [user("x")])["content"] == "x"


def test_a_client_that_sends_all_before_it_reads_is_told_why():
    """urllib finds its connection reset, and no answer, where a server closes it in the middle of the body."""
    with serving(lambda read, key: "x") as (url, _, _):
        request = urllib.request.Request(f"{url}/chat/completions", b" " * 30_000_000, {"Authorization": "Bearer sk-1"})
        with pytest.raises(urllib.error.HTTPError, match="413"):
            urllib.request.urlopen(request, timeout=30)


def test_a_body_of_unknown_length_is_refused():
    def endless():
        for _ in range(LARGEST // (1 << 20) + 4):
            yield b" " * (1 << 20)

    with serving(lambda read, key: "x") as (url, _, _):
        answer = HTTP.post(f"{url}/chat/completions", content=endless(), headers={"Authorization": "Bearer sk-1"})
        assert answer.status_code == 413


@pytest.mark.slow
def test_a_call_is_answered_while_a_large_one_is_prepared(monkeypatch):
    started = []

    def slow(history, body, read):
        if len(body) > 1 << 17:
            started.append(time.monotonic())
            time.sleep(1.0)
        return prepare_call(history, body, read)

    monkeypatch.setattr("gxpo.sampling.serve.http.prepare_call", slow)
    with serving(lambda read, key: "x") as (url, _, _):
        large = [threading.Thread(target=post, args=(url, "sk-1"), kwargs={"messages": [user("a" * (1 << 18))]})
                 for _ in range(3)]  # fmt: skip
        for thread in large:
            thread.start()
        while not started:
            time.sleep(0.01)
        assert ask(url, "sk-1", [user("x")])["content"] == "x"
        assert all(thread.is_alive() for thread in large)
        for thread in large:
            thread.join()
