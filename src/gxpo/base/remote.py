"""JSON-over-HTTP client for one server: limits on time and size, no redirects, one API key for that server alone."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
import os
import re
import threading
import weakref
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from gxpo.base.errors import ConfigError, need
from gxpo.base.server_keys import key_for
from gxpo.base.usercode import one_line

Reply = TypeVar("Reply", bound=BaseModel)
Read = TypeVar("Read")

RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)  # answers of a server that may be another one next time
LONGEST_WAIT = 30.0  # seconds before another attempt
READ_OF_ERRORS = 4096  # bytes
pause = asyncio.sleep


class ChatMessage(BaseModel):
    """A message from a chat model; `content` is None if it called a tool."""

    content: str | None = None


class ChatChoice(BaseModel):
    """One choice of a chat completion."""

    message: ChatMessage
    finish_reason: str | None = None


class ChatUsage(BaseModel):
    """Tokens of the request."""

    completion_tokens: int = Field(default=0, ge=0)


class ChatCompletion(BaseModel):
    """Response of /chat/completions, as far as it is read."""

    choices: list[ChatChoice] = Field(min_length=1)
    usage: ChatUsage | None = None


class Unanswered(Exception):
    """The server gave no usable answer.

    kind   "raised", "timeout" or "nonsense" (it broke the protocol)
    again  whether the server was busy, broken, slow or gone: the same question may be answered another time
    status of the answer, where that is what was wrong with it
    """

    def __init__(self, kind: str, message: str, *, again: bool = False, status: int | None = None) -> None:
        super().__init__(one_line(message))
        self.kind, self.again, self.status = kind, again, status


class Line:
    """A client of one server; thread-safe, over connections that stay open.

    url       base URL, before the paths, as http://localhost:8000/v1
    setting   the setting that gives it, as errors name it;   asker  where its `key_from` stands
    key_from  environment variable that holds the key; None: the service's own (`gxpo.base.server_keys`)
    timeout   seconds for one attempt, from looking up the host to the last byte
    retries   further attempts where the server is busy, broken, slow or gone
    backoff   seconds before the first of them, doubled for each, at most 30 (a Retry-After is followed up to that)

    Redirects are errors: their target would get the question, and would be believed. Proxies are those of the
    environment, except for this machine, and for a key over http, which a proxy could read.
    """

    def __init__(
        self,
        url: str,
        *,
        setting: str,
        asker: str,
        key_from: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        backoff: float = 1.0,
    ) -> None:
        self._http = http = need("httpx2", "server")
        if not timeout > 0 or retries < 0 or backoff < 0:
            raise ConfigError(f"{asker}: timeout must be above 0, retries and backoff at least 0")
        if "@" in url:  # and is not repeated here
            raise ConfigError(f"{setting}: an address holds no user and no password; name a variable in key_from")
        try:
            address = http.URL(url)
        except http.InvalidURL as error:
            raise ConfigError(f"{setting}={url!r} is no address: {error}") from None
        if address.scheme not in ("http", "https") or not address.host or address.query or address.fragment:
            raise ConfigError(f"{setting}={url!r} is no address; give one as http://localhost:8000/v1")
        self.url = url.rstrip("/")
        # the key is chosen by the host before any connection: a configuration may name both, and come from a stranger
        self._timeout, self._retries, self._backoff = timeout, retries, backoff
        self._key = key_for(address.scheme, address.host, address.port, key_from, asker)
        # no proxy for this machine, nor where it would see a key unencrypted
        self._direct = _loopback(address.host) or bool(self._key and address.scheme == "http")
        self._trust = _trust(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        self._loop = _loop()
        self._open()  # finds out now what is wrong with the proxies
        self._idle: list[Any] = []  # clients of one connection each: one pool of hundreds is slow to choose from
        self._finalizer = weakref.finalize(self, _shut, self._idle, self._loop)
        self._finalizer.atexit = False

    def _open(self) -> Any:
        # no compression: a small answer could otherwise inflate to any size
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "gxpo"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        client_options: dict[str, Any] = {"verify": self._trust}
        if self._direct:
            # a transport of its own ignores the proxies of the environment
            client_options = {"transport": self._http.AsyncHTTPTransport(**client_options)}
        try:
            # a redirect could lead to another host, with the key
            return self._http.AsyncClient(headers=headers, follow_redirects=False, timeout=None, **client_options)
        except (ImportError, ValueError, self._http.InvalidURL) as error:
            raise ConfigError(one_line(f"a proxy of the environment can't be used: {error}")) from error

    def get(self, path: str, reply: type[Reply], most: int) -> Reply:
        """GET, validated as a `reply` of at most `most` bytes; raises `Unanswered`."""
        return run(self._ask("GET", path, None, reply, most))

    def post(self, path: str, body: Mapping[str, Any], reply: type[Reply], most: int) -> Reply:
        """POST, validated as a `reply` of at most `most` bytes; raises `Unanswered`."""
        return run(self._ask("POST", path, body, reply, most))

    async def once(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None,
        reply: type[Reply],
        most: int,
        timeout: float | None = None,
    ) -> Reply:
        """One attempt, without retries, on the loop of `run`. timeout: seconds, where it is not the line's."""
        content = None if body is None else json.dumps(body).encode()
        try:
            return self._read(path, await self._attempt(verb, path, content, most, timeout), reply)
        except _Again as error:
            raise Unanswered(error.kind, str(error), again=True) from error

    async def up(self, path: str, timeout: float) -> None:
        """Raises `Unanswered` unless a GET is answered with a status of 200 to 299 within `timeout` seconds."""
        try:
            await self._attempt("GET", path, None, READ_OF_ERRORS, timeout)
        except _Again as error:
            raise Unanswered(error.kind, str(error), again=True) from error

    async def _ask(self, verb: str, path: str, body: Mapping[str, Any] | None, reply: type[Reply], most: int) -> Reply:
        wait, content = self._backoff, None if body is None else json.dumps(body).encode()
        for attempt in range(self._retries + 1):
            try:
                return self._read(path, await self._attempt(verb, path, content, most), reply)
            # only what may pass by itself is tried again: an answer that was refused would be refused again
            except _Again as error:
                if attempt == self._retries:
                    attempts = f" (tried {attempt + 1} times)" if attempt else ""
                    raise Unanswered(error.kind, f"{error}{attempts}", again=True) from error
                # the server's Retry-After holds if it is longer, up to a limit
                await pause(min(LONGEST_WAIT, max(wait, error.after)))
                wait *= 2
        raise AssertionError("unreachable")

    def _read(self, path: str, body: bytes, reply: type[Reply]) -> Reply:
        try:
            return reply.model_validate_json(body)
        except ValidationError as error:
            raise Unanswered(
                "nonsense", f"{self.url}{path} breaks the protocol: {self._plain(_first(error))}"
            ) from None

    async def _attempt(
        self, verb: str, path: str, content: bytes | None, most: int, timeout: float | None = None
    ) -> bytes:
        seconds = self._timeout if timeout is None else timeout
        try:
            exchange = self._exchange(verb, path, content, most)
            # one limit on the whole exchange: limits on reads alone let a slow server drip for ever
            status, headers, body = await asyncio.wait_for(exchange, seconds)
        except (TimeoutError, asyncio.TimeoutError) as error:
            raise _Again("timeout", f"{self.url}{path} took longer than {seconds:g} s") from error
        except self._http.HTTPError as error:
            reason = self._plain(str(error)) or type(error).__name__
            raise _Again("raised", f"{self.url} can't be reached: {reason}; is the server up?") from error
        if 200 <= status < 300:
            return body
        # a server's own words reach a terminal only through `_plain`, and the key never
        message = f"{self.url}{path} answers {status}: {self._plain(body.decode('utf-8', 'replace'))}"
        if 300 <= status < 400:
            raise Unanswered(
                "raised",
                f"{self.url}{path} answers {status}, a redirect to {self._plain(headers.get('Location', 'nowhere'))}, "
                "which is not followed: name the address that answers itself",
            )
        if status in RETRIED:
            raise _Again("raised", message, _seconds(headers.get("Retry-After", "")))
        # the usual reason, which the server's words rarely name
        if status in (401, 403) and not self._key:
            message += " (no key was sent: key_from names its variable, --allow-key allows it)"
        raise Unanswered("raised", message, status=status)

    async def _exchange(self, verb: str, path: str, content: bytes | None, most: int) -> tuple[int, Any, bytes]:
        """Status, headers and body; of an error no more than is shown."""
        if self._idle:
            with suppress(self._http.TransportError):
                return await self._with(self._idle.pop(), verb, path, content, most)
            # the server may close an idle connection at any time: once more, on a new one
        return await self._with(self._open(), verb, path, content, most)

    async def _with(
        self, client: Any, verb: str, path: str, content: bytes | None, most: int
    ) -> tuple[int, Any, bytes]:
        try:
            response = await self._stream(client, verb, path, content, most)
        except BaseException:
            await client.aclose()
            raise
        self._idle.append(client)
        return response

    async def _stream(
        self, client: Any, verb: str, path: str, content: bytes | None, most: int
    ) -> tuple[int, Any, bytes]:
        headers = {"Content-Type": "application/json"} if content is not None else {}
        async with client.stream(verb, self.url + path, content=content, headers=headers) as answer:
            good = 200 <= answer.status_code < 300
            coding = answer.headers.get("Content-Encoding", "identity")
            if good and coding.lower() != "identity":  # a small file of zeros may be a large answer
                raise Unanswered(
                    "nonsense", f"{self.url}{path} answers in {self._plain(coding)}, which nobody asked for"
                )
            # counted as it comes: Content-Length may promise less than is sent
            body = bytearray()
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > most and good:
                    raise Unanswered("nonsense", f"{self.url}{path} answers with more than {most} bytes")
                # errors are shown in part, so the rest need not be read
                if len(body) > READ_OF_ERRORS and not good:
                    break
            return answer.status_code, answer.headers, bytes(body)

    def _plain(self, text: str) -> str:
        return plain(text.replace(self._key, "***") if self._key else text)

    def close(self) -> None:
        """Close all open connections."""
        self._finalizer()


def run(asking: Coroutine[Any, Any, Read]) -> Read:
    """The result of a coroutine, run on the loop of all clients; from any other thread."""
    future = asyncio.run_coroutine_threadsafe(asking, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()  # the wait was interrupted, by Ctrl-C
        raise


def clock() -> float:
    """The time of the clients' loop, in seconds."""
    return _loop().time()


def plain(text: str) -> str:
    """Sanitise text from a server: one line, without control sequences for terminals."""
    return one_line("".join(c if c.isprintable() else " " for c in text))


class _Again(Exception):
    """Retry after that many seconds."""

    def __init__(self, kind: str, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.kind, self.after = kind, after


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all clients, in its own thread: only there a deadline holds for a whole exchange."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="gxpo-remote", daemon=True).start()
    return loop


@functools.cache
def _trust(file: str | None, folder: str | None) -> Any:
    """TLS context with the trusted authorities, cached by the two variables of the environment that httpx2 reads: it
    takes long to make."""
    return need("httpx2", "server").create_ssl_context()


def _shut(clients: list[Any], loop: asyncio.AbstractEventLoop) -> None:
    async def shut() -> None:
        while clients:
            await clients.pop().aclose()

    asyncio.run_coroutine_threadsafe(shut(), loop)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _seconds(after: str) -> float:
    """Seconds of a Retry-After header, given in seconds or as a date; 0 if it can't be read."""
    if re.fullmatch(r"[0-9]+", after):
        return float(after)
    try:
        moment = parsedate_to_datetime(after)
        return (moment.replace(tzinfo=moment.tzinfo or timezone.utc) - datetime.now(timezone.utc)).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, problem["loc"]))
    return f"{place}: {problem['msg']}" if place else problem["msg"]
