"""One client for judges and engines: no redirects, no more bytes or seconds than were granted, no key lost."""

from __future__ import annotations

import gzip
import itertools
import json
import time
from email.utils import formatdate
from functools import partial

import pytest
from pydantic import BaseModel
from tests.raw_server import answering, http

from gxpo.base import remote
from gxpo.base.errors import ConfigError, ModelError
from gxpo.base.judges import JudgeFailure, Server
from gxpo.base.remote import Line, Unanswered
from gxpo.base.server_keys import ALLOW
from gxpo.sampling.engines.openai import OpenAIEngine

KEY = "key-that-nobody-may-see"
ASKED = [{"role": "user", "content": "How good?"}]


class Found(BaseModel):
    """What these servers are asked for."""

    x: float


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Seconds that were to pass before further attempts; none do."""
    actual: list[float] = []

    async def pause(seconds):
        actual.append(seconds)

    monkeypatch.setattr(remote, "pause", pause)
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv(ALLOW, "MY_KEY")
    return actual


def line(url, **settings):
    return Line(url, **{"setting": "sampling.server", "asker": "judge", "timeout": 20.0, "retries": 0, **settings})


def ask(url, most=1 << 16, **settings):
    return line(url, **settings).post("/ask", {"q": 1}, Found, most).x


def failure(url, **settings):
    with pytest.raises(Unanswered) as caught:
        ask(url, **settings)
    assert "\n" not in str(caught.value)
    return caught.value.kind, str(caught.value)


# ---------------------------------------------------------------- whom it talks to
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize(
    ("who", "error"),
    [
        (lambda url: Server(url, "m", "MY_KEY").ask(ASKED), JudgeFailure),
        (lambda url: OpenAIEngine(url, key_from="MY_KEY"), ModelError),
    ],
)
def test_no_redirect_is_followed_and_no_key_goes_with_it(status, who, error):
    everything = {"choices": [{"message": {"content": "Score: 10"}}], "data": [{"id": "m"}]}
    with answering(lambda _: http(json.dumps(everything).encode())) as (other, arrived):
        elsewhere = other.replace("127.0.0.1", "localhost")
        pointing, words = (
            http(b"", status, f"Location: {elsewhere}/all"),
            f"a redirect to {elsewhere}/all, which is not",
        )
        with answering(lambda _: pointing) as (url, requests), pytest.raises(error, match=words):
            who(url)
    assert arrived == [] and [headers["authorization"] for _, headers, _ in requests] == [f"Bearer {KEY}"]


def test_proxy_never_sees_local_requests_or_keys_over_http(monkeypatch):
    with answering(lambda _: http(b'{"x": 1}')) as (proxy, relayed), answering(lambda _: http(b'{"x": 2}')) as (url, _):
        monkeypatch.setenv("http_proxy", proxy.removesuffix("/v1"))
        monkeypatch.delenv("no_proxy", raising=False)
        anywhere = url.replace("127.0.0.1", "0.0.0.0")  # this machine again, by an address that is no loopback
        assert (ask(url), ask(anywhere, key_from="MY_KEY"), len(relayed)) == (2.0, 2.0, 0)
        assert (ask(anywhere), len(relayed)) == (1.0, 1)


def test_a_certificate_is_checked():
    assert line("https://127.0.0.1:9/v1")._open()._transport._pool._ssl_context.verify_mode.name == "CERT_REQUIRED"


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://x/v1",
        "http://",
        "http:///v1",
        "http://x:y/v1",
        "http://x/v1?key=1",
        "http://x/v1#a",
        "",
    ],
)
def test_addresses_that_are_none(url):
    with pytest.raises(ConfigError, match=r"sampling\.server=.* is no address"):
        line(url)


@pytest.mark.parametrize(
    "url", ["http://user:hunter2@x/v1", "http://user:hunter2@[x/v1", "http://api.openai.com\\@hunter2/v1"]
)
def test_an_address_with_a_password_is_not_repeated(url):
    with pytest.raises(ConfigError, match="holds no user and no password") as caught:
        line(url)
    assert "hunter2" not in str(caught.value)


def test_server_errors_are_shown_without_keys_or_escape_codes():
    with answering(lambda _: http(f"bad key \x1b[2J{KEY}\nmore".encode(), "401 No")) as (url, _):
        assert failure(url, key_from="MY_KEY")[1] == f"{url}/ask answers 401: bad key [2J*** more"
        assert "no key was sent: key_from names its variable, --allow-key allows it" in failure(url)[1]


# ---------------------------------------------------------------- how much it takes
def dripped(*, head: bool):
    """An answer that is right in the end, byte by byte, each long before any pause would be noticed."""
    full_http = http(b'{"x": 1}' + b" " * 400)
    cut = 0 if head else full_http.index(b"{")
    yield full_http[:cut]
    for byte in full_http[cut:]:
        time.sleep(0.01)
        yield bytes([byte])


@pytest.mark.parametrize("head", [True, False])
def test_the_time_is_of_the_whole_exchange(head):
    with answering(lambda _: dripped(head=head)) as (url, requests):
        assert failure(url, timeout=0.3, retries=1) == ("timeout", f"{url}/ask took longer than 0.3 s (tried 2 times)")
        assert len(requests) == 2


def endless(sent, size=1 << 16):
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    for n in itertools.count(1):
        yield b" " * size
        sent.append(n)


def test_an_endless_answer_ends_where_it_is_too_long():
    sent: list[int] = []
    with answering(lambda _: endless(sent)) as (url, requests):
        assert failure(url, most=100_000, retries=3) == ("nonsense", f"{url}/ask answers with more than 100000 bytes")
    assert len(requests) == 1 and len(sent) < 1000


def test_a_long_error_is_read_as_far_as_it_is_shown():
    with answering(lambda _: itertools.chain([b"HTTP/1.1 400 Bad\r\n\r\n"], itertools.repeat(b"no" * 999))) as (url, _):
        assert failure(url)[1].startswith(f"{url}/ask answers 400: nono")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (http(gzip.compress(b'{"x":1}', mtime=0), "200 OK", "Content-Encoding: gzip"), "answers in gzip, which nobody"),
        (http(b"<html>"), "breaks the protocol: Invalid JSON"),
        (http(b"[" * 20_000), "breaks the protocol: Invalid JSON: recursion limit"),
        (http(b'{"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"), "breaks the protocol"),
        (http('{"x": 1}'.encode("utf-16")), "breaks the protocol"),
        (http(b'{"x": "\\ud800"}'), "breaks the protocol"),
        (http(b'{"x": 1'), "breaks the protocol"),
        (http(b"[1]"), "breaks the protocol"),
        (http(b""), "breaks the protocol"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_one_clear_failure(answer, words):
    with answering(lambda _: answer) as (url, requests):
        kind, message = failure(url, retries=2)
    assert kind == "nonsense" and words in message and len(requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/9.9 what\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffffffff\r\n{}",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000 + b"\r\n\r\n{}",
    ],
)
def test_what_breaks_off_is_tried_again_and_then_a_clear_failure(answer, waits):
    with answering(lambda _: answer) as (url, requests):
        kind, message = failure(url, retries=2, backoff=0.5)
    assert kind == "raised" and "can't be reached: " in message and "(tried 3 times)" in message
    assert len(requests) == 3 and waits == [0.5, 1.0]


@pytest.mark.parametrize(
    ("after", "least", "most"),
    [
        ("7", 7, 7),
        ("0", 1, 1),
        ("9" * 5000, 30, 30),
        ("1e308", 1, 1),
        ("-5", 1, 1),
        ("\u00b2", 1, 1),  # a digit, of which no number can be made
        ("soon", 1, 1),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 1, 1),
        ("Thu, 99 Jan 99999 00:00:00 GMT", 1, 1),
        ("Thu, 01 Jan 2200 00:00:00 -0000", 30, 30),
        (partial(formatdate, usegmt=True), 8, 20),
    ],
)
def test_a_busy_server_says_when_and_is_believed_up_to_a_point(after, least, most, waits):
    text = after(time.time() + 20) if callable(after) else after
    answers = iter([http(b"busy", "503 Busy", f"Retry-After: {text}"), http(b'{"x": 3}')])
    with answering(lambda _: next(answers)) as (url, _):
        assert ask(url, retries=1) == 3.0
    assert len(waits) == 1 and least <= waits[0] <= most


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "httpx2", None)
    with pytest.raises(Exception, match=r"pip install 'gxpo\[server\]'"):
        line("http://127.0.0.1:9/v1")
