"""HTTP endpoint on loopback: a Starlette application in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gxpo.base.errors import ConfigError, need
from gxpo.sampling.serve import connections, messages, reply, request, responses, strict_json
from gxpo.sampling.serve.connections import check_origin, host_names
from gxpo.sampling.serve.history import Choice, Draft, History
from gxpo.sampling.serve.outcome import Nonsense, outcome_of
from gxpo.sampling.serve.queue import Attempt, Call, CallQueue
from gxpo.sampling.serve.request import TOO_LONG, CallRequest, Refused

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
LARGEST = 1 << 23  # bytes of a body
DRAINED = 1 << 26  # bytes of a refused body that are read all the same
LARGEST_TOGETHER = 1 << 28  # bytes of all bodies that are being read or parsed
LIGHT = 1 << 17  # bytes of a body that is parsed quickly, and does not wait for larger ones
THREADS = 2  # for light calls, and as many for heavy ones

T = TypeVar("T")


class Api(NamedTuple):
    """API of a provider: how a body is read as a call, and how its choices are written, as a body or as events."""

    read: Callable[[Any], CallRequest]
    body: Callable[[CallRequest, Sequence[Choice], reply.Decode], dict[str, Any]] = reply.body
    events: Callable[[CallRequest, Sequence[Choice], reply.Decode], Iterator[str]] = reply.events


APIS = {
    "/v1/chat/completions": Api(partial(request.read, chat=True)),
    "/v1/completions": Api(partial(request.read, chat=False)),
    "/v1/responses": Api(responses.read, responses.body, responses.events),
    "/v1/messages": Api(messages.read, messages.body, messages.events),
}


class Server:
    """HTTP server of a queue's calls, from construction until `close`.

    decode  converts token ids to text
    port    0: any free port
    hosts   host names under which it answers beside those of loopback
    """

    def __init__(
        self, queue: CallQueue, decode: reply.Decode, port: int = 0, *, hosts: frozenset[str] = frozenset()
    ) -> None:
        uvicorn, self._bodies = need("uvicorn", "serve"), Bodies()
        app = application(queue, decode, self._bodies, hosts)
        # Bound here rather than by uvicorn, so that the port is known and an error is raised in the caller's thread.
        try:
            self._socket = socket.create_server((HOST, port), backlog=1024)
        except OSError as error:
            raise ConfigError(f"can't listen on {HOST}:{port}: {error.strerror}; choose another port") from error
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
            http=connections.protocol(connections.most_connections()),
            h11_max_incomplete_event_size=connections.LARGEST_HEAD,
        )
        self._server = uvicorn.Server(config)
        serve = {"sockets": [self._socket]}
        self._thread = threading.Thread(target=self._server.run, kwargs=serve, name="gxpo-serve", daemon=True)
        self._thread.start()

    @property
    def base_url(self) -> str:
        """Base URL for OpenAI's clients."""
        return f"http://{HOST}:{self.port}/v1"

    def close(self, *, wait: bool = True) -> None:
        """Stop answering calls; without `wait` the thread ends by itself within some tenths of a second."""
        self._server.should_exit = True
        self._bodies.close()
        if wait:
            self._thread.join(5.0)


class Bodies:
    """Reader of request bodies within limits, with threads that parse them while the endpoint answers other clients."""

    def __init__(self) -> None:
        self._light = ThreadPoolExecutor(THREADS, thread_name_prefix="gxpo-serve-light")
        self._heavy = ThreadPoolExecutor(THREADS, thread_name_prefix="gxpo-serve-heavy")
        self._size = 0  # bytes of all bodies in progress

    def close(self) -> None:
        """Stop the threads; bodies that wait are dropped."""
        for pool in (self._light, self._heavy):
            pool.shutdown(wait=False, cancel_futures=True)

    async def read(self, http: Request, prepare: Callable[[bytearray], T]) -> T:
        """Read a body and return `prepare(body)`; one that is too large is drained and refused."""
        from starlette.requests import ClientDisconnect

        body = bytearray()
        size = 0
        try:
            length = http.headers.get("content-length", "")
            if length.isdecimal() and int(length[:20]) > DRAINED:
                raise _too_large()
            # A client whose connection closes while it still sends never reads the refusal, so the rest is drained.
            async for piece in http.stream():
                size += len(piece)
                if size > DRAINED:
                    break
                if size > LARGEST:
                    continue
                body += piece
                self._size += len(piece)
                if self._size > LARGEST_TOGETHER:
                    raise Refused("too many large requests at once: try again in a second", status=503)
            if size > LARGEST:
                raise _too_large()
            pool = self._light if len(body) <= LIGHT else self._heavy
            return await asyncio.get_running_loop().run_in_executor(pool, prepare, body)
        except ClientDisconnect as error:
            raise Refused("the client has gone", status=499) from error
        finally:
            self._size -= len(body)


def application(queue: CallQueue, decode: reply.Decode, bodies: Bodies, hosts: frozenset[str]) -> ASGIApp:
    """Build the application: `/v1/...` with a key as bearer token or `x-api-key`; `/KEY/v1/...` for clients without."""
    need("starlette", "serve")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    def refuse(http: Request, error: Exception) -> Response:
        # Every error, even one of the framework or a bug, has the format of its API: clients fail to parse any other.
        if isinstance(error, HTTPException):
            error = Refused(f"there is no such route or method: {error.detail}", status=error.status_code)
        if not isinstance(error, Refused):
            error = Refused(f"{type(error).__name__}: {error}", status=500)
        is_anthropic = "/v1/messages" in http.url.path
        return JSONResponse(messages.error(error) if is_anthropic else error.body(), error.status)

    async def complete(http: Request, api: Api) -> Response:
        attempt = queue.attempt(_key(http))
        # An agent that breaks on a full context is the policy's failure, so the attempt remembers the refusal.
        try:
            call_request, drafts = await bodies.read(http, lambda body: prepare_call(attempt.history, body, api.read))
        except Refused as error:
            attempt.limit = attempt.limit or ("context" if error.code == TOO_LONG else None)
            raise
        choices = await _answer(http, queue, queue.submit(attempt, call_request, drafts))
        if call_request.stream:
            return StreamingResponse(api.events(call_request, choices, decode), media_type="text/event-stream")
        return JSONResponse(api.body(call_request, choices, decode))

    async def count_tokens(http: Request) -> Response:
        attempt = queue.attempt(_key(http))
        _, drafts = await bodies.read(http, lambda body: prepare_call(attempt.history, body, messages.read))
        return JSONResponse({"input_tokens": len(drafts[0].ids)})

    async def list_models(http: Request) -> Response:
        queue.attempt(_key(http))
        return JSONResponse(reply.model() if "name" in http.path_params else reply.models())

    async def reward(http: Request) -> Response:
        attempt: Attempt = queue.attempt(_key(http))
        try:
            body = await bodies.read(http, read_outcome)
        except Refused as error:
            attempt.post_error = str(error)
            raise
        queue.post(attempt, body)
        if attempt.over:  # the client may count on its record
            await asyncio.wrap_future(attempt.record_future)
        return JSONResponse({"ok": True})

    routes = [
        *((path, partial(complete, api=api), ["POST"]) for path, api in APIS.items()),
        ("/v1/messages/count_tokens", count_tokens, ["POST"]),
        ("/v1/models", list_models, ["GET"]),
        ("/v1/models/{name:path}", list_models, ["GET"]),
        ("/v1/reward", reward, ["POST"]),
    ]
    app = Starlette(
        routes=[Route(p + path, view, methods=methods) for p in ("", "/{key}") for path, view, methods in routes],
        exception_handlers={Refused: refuse, HTTPException: refuse, Exception: refuse},
    )
    names = host_names((), "") | hosts

    # Hosts and origins are checked before routing, so that no route can forget it.
    async def check_request(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            check_origin(scope.get("headers", ()), names)
        except Refused as error:
            await JSONResponse(error.body(), error.status)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return check_request


def _key(http: Request) -> str | None:
    """API key of a request, from the path or the bearer token."""
    if "key" in http.path_params:
        return http.path_params["key"]
    kind, _, key = http.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else http.headers.get("x-api-key")


def prepare_call(
    history: History, body: bytearray, read: Callable[[Any], CallRequest]
) -> tuple[CallRequest, list[Draft]]:
    """Parse a call and tokenise its prompts, away from the event loop."""
    call_request = read(parse_body(body))
    return call_request, history.drafts(call_request)


def read_outcome(body: bytearray) -> Any:
    """Parse and check the body of `/v1/reward`."""
    value = parse_body(body)
    try:
        outcome_of(value)
    except Nonsense as error:
        raise Refused(str(error).replace("it returned", "the body is")) from error
    return value


def parse_body(body: bytearray) -> Any:
    """Parse a body as strict JSON, or raise `Refused`."""
    try:
        return strict_json.parse(body)
    except strict_json.Malformed as error:
        raise Refused(f"the body is not JSON: {error}") from error


def _too_large() -> Refused:
    return Refused(f"the body has more than {LARGEST} bytes", status=413)


async def _answer(http: Request, queue: CallQueue, call: Call) -> Any:
    """Wait for the answer of a call; withdraw the call if its client disconnects before."""
    answer, disconnection = asyncio.wrap_future(call.answer), asyncio.ensure_future(_until_disconnected(http))
    finished, _ = await asyncio.wait({answer, disconnection}, return_when=asyncio.FIRST_COMPLETED)
    if answer not in finished:
        queue.withdraw(call)
        raise Refused("the client has gone", status=499)
    disconnection.cancel()
    return answer.result()


async def _until_disconnected(http: Request) -> None:
    """Return when the client has disconnected."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
