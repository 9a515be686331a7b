"""Calls that no honest client makes: each field of a call holds what it must not, and costs that call alone."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from tests.sampling.serve.agent_session import CHAT, HTTP, TOKENIZER, ask, post, user
from tests.sampling.serve.test_http import serving

from gxpo.models.chat.plain import PlainChat
from gxpo.sampling.serve import connections
from gxpo.sampling.serve.connections import host_names
from gxpo.sampling.serve.history import History
from gxpo.sampling.serve.http import LARGEST, prepare_call, read_outcome
from gxpo.sampling.serve.request import Refused

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
repetition_penalty logit_bias response_format top_logprobs modalities best_of echo suffix unknown"""
ONE = '[{"role": "user", "content": "1+1="}]'


def bodies():
    """(whether it is a chat, a body with @ in the place of a value)."""
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


def written(template: str, value: str) -> bytes:
    return template.replace("@", value).encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("chat", [CHAT, PlainChat(TOKENIZER)], ids=["template", "plain"])
def test_each_field_is_read_or_refused(chat):
    """A call that is read gives token ids of the vocabulary, and names, numbers and texts that a record can hold."""
    history, wrong, calls = History(chat, TOKENIZER, limit=4096), [], 0
    for is_chat, template in bodies():
        for value in NASTY:
            calls += 1
            try:
                asked, drafts = prepare_call(history, bytearray(written(template, value)), is_chat)
                ids = [i for d in drafts for i in d.ids]
                assert ids and all(type(i) is int and 0 <= i < len(TOKENIZER) for i in ids)
                assert isinstance(asked.agent, str) and isinstance(asked.state, str | None)
                assert asked.reward is None or abs(asked.reward) < 1e308
                json.dumps([asked.agent, asked.state, asked.order, asked.model], ensure_ascii=False).encode()
            except Refused as refused:
                message = refused.body()["error"]["message"]
                if refused.status != 400 or "\n" in message or len(message) > 300 or "Error:" in message:
                    wrong.append((template, value[:40], refused.status, message))
            except Exception as error:
                wrong.append((template, value[:40], repr(error)[:200]))
    assert not wrong, wrong[:5]
    assert calls > 5000


@pytest.mark.parametrize(
    ("body", "says"),
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
def test_what_a_refusal_says(body, says):
    with pytest.raises(Refused) as caught:
        prepare_call(History(CHAT, TOKENIZER), bytearray(body), True)
    assert says in str(caught.value) and caught.value.status == 400


@pytest.mark.parametrize("ids", [[99999], [2**32], [2**40], [10**30], [2**62], [len(TOKENIZER)], [5, 387]])
def test_token_ids_that_the_policy_does_not_have(ids):
    assert len(TOKENIZER) == 387
    with pytest.raises(Refused, match=r"prompt has the token id .*; there are 0 to 386"):
        prepare_call(History(CHAT, TOKENIZER), bytearray(json.dumps({"prompt": ids}).encode()), False)
    prepare_call(History(CHAT, TOKENIZER), bytearray(b'{"prompt": [386]}'), False)


@pytest.mark.parametrize(
    "posted",
    [
        b"1" + b"0" * 400, b"1e999", b"NaN", b"[1]", b"{", b"\xff", b"[" * 100_000, b'{"reward": {}}', b'{"score": 1}',
        b'{"reward": "one"}', b'{"reward": 1, "success": "no"}', b'{"answer": "\\ud800"}', b'{"info": {"\\ud800": 1}}',
        b'{"rewards": {"agent": 1}}', b'{"reward": 1, "reward": 0}', b'{"rewards": {"a": true, "": 1}}',
    ],
)  # fmt: skip
def test_an_outcome_that_is_none_is_refused_when_it_is_posted(posted):
    with pytest.raises(Refused) as caught:
        read_outcome(bytearray(posted))
    assert caught.value.status == 400 and "\n" not in str(caught.value)


def test_over_http_the_next_call_is_answered():
    some = [template for _, template in bodies()][::3]
    with serving(lambda read, key: "x") as (url, attempt, _):
        connection = http.client.HTTPConnection("127.0.0.1", int(url.split(":")[2].split("/")[0]), timeout=20)
        statuses = set()
        for i, template in enumerate(some):
            path = "/v1/chat/completions" if "messages" in template else "/v1/completions"
            body = written(template, NASTY[i % len(NASTY)])
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
        assert attempt.posted == {"reward": 1} and attempt.post_error is None
        assert ask(url, "sk-1", [user("x")])["content"] == "x"
        attempt.history.turns()


# ---------------------------------------------------------------- sizes and times
def test_what_is_too_large_is_refused_at_once():
    """One call after the other: each of them would take a minute and more if it were put into tokens."""
    with serving(lambda read, key: "x", max_context=100) as (url, attempt, engine):
        for body, status, says in (
            ({"messages": [user("a" * 30_000_000)]}, 413, f"more than {LARGEST} bytes"),
            ({"messages": [user("a" * 8_000_000)]}, 400, "100 tokens, and the prompt has 8000000 characters"),
            ({"messages": [user("x")], "stop": [f"x{i}" for i in range(200_000)]}, 400, "at most 16 texts"),
            ({"messages": [user("x")], "stop": "a" * 1_000_000}, 400, "1 to 256 characters"),
            ({"messages": [user("x")] * 5000}, 400, "1 to 4096 messages"),
            ({"messages": [user("x")], "tools": [{"function": {"name": "f"}}] * 1000}, 400, "at most 256"),
        ):
            answer = post(url, "sk-1", **body)
            assert answer.status_code == status and says in answer.json()["error"]["message"], (says, answer.text)
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


def is_left(port: int, data: bytes) -> bool:
    """Whether the connection is closed without an answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as line:
        line.sendall(data)
        try:
            return line.recv(1) == b""
        except ConnectionResetError:
            return True


def test_clients_that_do_not_finish_are_left(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.3)
    head = b"POST /sk-1/v1/reward HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    with serving(lambda read, key: "x") as (url, _, _):
        port = int(url.split(":")[2].split("/")[0])
        assert all(is_left(port, begun) for begun in (b"", head, head + b"\r\n{"))
        assert ask(url, "sk-1", [user("x")])["content"] == "x"


def test_many_connections_leave_room_for_those_that_ask(monkeypatch):
    monkeypatch.setattr(connections, "most_connections", lambda: 20)
    with serving(lambda read, key: "x") as (url, _, _):
        port = int(url.split(":")[2].split("/")[0])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        assert ask(url, "sk-1", [user("x")])["content"] == "x"
        for line in idle:
            line.close()


# ---------------------------------------------------------------- web pages
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 200, None),
        ({"Host": "localhost"}, 200, None),
        ({"Host": "LOCALHOST:8000"}, 200, None),
        ({"Host": "[::1]:8000"}, 200, None),
        ({"Host": "host.docker.internal:8000"}, 200, None),
        ({"Host": "evil.example"}, 403, "host_not_allowed"),
        ({"Host": "127.0.0.1.evil.example:8000"}, 403, "host_not_allowed"),
        ({"Host": "localhost:8000@evil.example"}, 403, "host_not_allowed"),
        ({"Host": ""}, 403, "host_not_allowed"),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200, None),
        ({"Host": "localhost:8000", "Origin": "http://localhost:3000"}, 403, "origin_not_allowed"),
        ({"Origin": "https://evil.example"}, 403, "origin_not_allowed"),
        ({"Origin": "null"}, 403, "origin_not_allowed"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "origin_not_allowed"),
        ({"Sec-Fetch-Site": "none"}, 200, None),
    ],
)
def test_pages_of_other_sites_are_refused(headers, status, code):
    with serving(lambda read, key: "x", hosts=host_names(["Host.Docker.internal"], "x")) as (url, _, _):
        answer = HTTP.get(f"{url}/models", headers={"Authorization": "Bearer sk-1", **headers})
        assert answer.status_code == status
        assert code is None or answer.json()["error"]["code"] == code


def test_a_call_is_answered_while_a_large_one_is_prepared(monkeypatch):
    began = []

    def slow(history, body, chat):
        if len(body) > 1 << 17:
            began.append(time.monotonic())
            time.sleep(1.0)
        return prepare_call(history, body, chat)

    monkeypatch.setattr("gxpo.sampling.serve.http.prepare_call", slow)
    with serving(lambda read, key: "x") as (url, _, _):
        large = [threading.Thread(target=post, args=(url, "sk-1"), kwargs={"messages": [user("a" * (1 << 18))]})
                 for _ in range(3)]  # fmt: skip
        for thread in large:
            thread.start()
        while not began:
            time.sleep(0.01)
        assert ask(url, "sk-1", [user("x")])["content"] == "x"
        assert all(thread.is_alive() for thread in large)
        for thread in large:
            thread.join()
