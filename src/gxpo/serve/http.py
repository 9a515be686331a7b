"""The endpoint on loopback: a Starlette application in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

from gxpo.errors import ConfigError, need
from gxpo.serve import reply, request
from gxpo.serve.queue import Attempt, Call, CallQueue
from gxpo.serve.refusal import Refused

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HOST = "127.0.0.1"
LARGEST = 1 << 25  # bytes of a body


class Server:
    """Serves a queue's calls from its making until `close`.

    decode  token ids to text
    port    0: a free one
    """

    def __init__(self, queue: CallQueue, decode: reply.Decode, port: int = 0) -> None:
        uvicorn, app = need("uvicorn", "serve"), application(queue, decode)
        try:
            self._socket = socket.create_server((HOST, port), backlog=1024)
        except OSError as error:
            raise ConfigError(f"can't listen on {HOST}:{port}: {error.strerror}; choose another port") from error
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        serve = {"sockets": [self._socket]}
        self._thread = threading.Thread(target=self._server.run, kwargs=serve, name="gxpo-serve", daemon=True)
        self._thread.start()

    @property
    def base_url(self) -> str:
        """What OpenAI's clients are given."""
        return f"http://{HOST}:{self.port}/v1"

    def close(self, *, wait: bool = True) -> None:
        """Answer no more calls. Without `wait` the thread ends by itself in some tenths of a second."""
        self._server.should_exit = True
        if wait:
            self._thread.join(5.0)


def application(queue: CallQueue, decode: reply.Decode) -> Starlette:
    """The routes: `/v1/...` with a key as bearer token, `/KEY/v1/...` for clients that can't send one."""
    need("starlette", "serve")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    def refused(_: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            error = Refused(f"there is no such route or method: {error.detail}", status=error.status_code)
        if not isinstance(error, Refused):
            error = Refused(f"{type(error).__name__}: {error}", status=500)
        return JSONResponse(error.body(), error.status)

    async def complete(http: Request, *, chat: bool) -> Response:
        attempt = queue.attempt(_key(http))
        asked = request.read(await _json(http), chat=chat)
        choices = await _answer(http, queue, queue.submit(attempt, asked))
        if asked.stream:
            return StreamingResponse(reply.events(asked, choices, decode), media_type="text/event-stream")
        return JSONResponse(reply.body(asked, choices, decode))

    async def chat(http: Request) -> Response:
        return await complete(http, chat=True)

    async def completion(http: Request) -> Response:
        return await complete(http, chat=False)

    async def models(http: Request) -> Response:
        queue.attempt(_key(http))
        return JSONResponse(reply.model() if "name" in http.path_params else reply.models())

    async def reward(http: Request) -> Response:
        attempt: Attempt = queue.attempt(_key(http))
        attempt.posted = await _json(http)
        return JSONResponse({"ok": True})

    routes = [
        ("/v1/chat/completions", chat, ["POST"]),
        ("/v1/completions", completion, ["POST"]),
        ("/v1/models", models, ["GET"]),
        ("/v1/models/{name:path}", models, ["GET"]),
        ("/v1/reward", reward, ["POST"]),
    ]
    return Starlette(
        routes=[Route(p + path, view, methods=how) for p in ("", "/{key}") for path, view, how in routes],
        exception_handlers={Refused: refused, HTTPException: refused, Exception: refused},
    )


def _key(http: Request) -> str | None:
    if "key" in http.path_params:
        return http.path_params["key"]
    kind, _, key = http.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else None


async def _json(http: Request) -> Any:
    """The body; a large one is not read to its end."""
    said = bytearray()
    async for piece in http.stream():
        said += piece
        if len(said) > LARGEST:
            raise Refused(f"the body has more than {LARGEST} bytes", status=413)
    try:
        return json.loads(said)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}") from error


async def _answer(http: Request, queue: CallQueue, call: Call) -> Any:
    """The answer to a call; a client that goes away before is not answered."""
    answer, gone = asyncio.wrap_future(call.answer), asyncio.ensure_future(_gone(http))
    done, _ = await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
    if answer not in done:
        queue.withdraw(call)
        raise Refused("the client has gone", status=499)
    gone.cancel()
    return answer.result()


async def _gone(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
