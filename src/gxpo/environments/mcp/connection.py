"""One connection to an MCP server, over stdio or streamable HTTP, by the official Python SDK (package `mcp`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gxpo.base import process_tree
from gxpo.base.errors import ConfigError, need
from gxpo.base.server_keys import key_for
from gxpo.base.usercode import one_line
from gxpo.environments.mcp.results import Outcome, result_text
from gxpo.environments.mcp.settings import ServerSpec

PAGES = 100  # of a server's list of tools; one that goes on for ever ends here
STARTING = 60.0  # seconds in which a server has to answer after its start, or the longer limit of a call
ENDING = 10.0  # seconds in which a connection has to close

T = TypeVar("T")


class Unreachable(Exception):
    """A server that can't be started or connected to; the message says why."""


class Connection:
    """A connection to one server. All methods belong to one event loop; `open` comes first, `close` last.

    tools  what the server lists: the SDK's objects by name
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.tools: dict[str, Any] = {}
        self._client: Any = None  # of the SDK; None before it is open and after it has ended
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def open(self) -> None:
        """Start the server, or connect to it, and read its list of tools; `Unreachable` if that fails."""
        is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # one task enters and leaves the SDK's contexts: its cancel scopes can't be left by another
        self._task = asyncio.create_task(self._run(is_open))
        try:
            await asyncio.wait_for(asyncio.shield(is_open), limit := max(STARTING, self.spec.timeout))
        except asyncio.TimeoutError:
            await self.close()
            raise Unreachable(f"it did not answer within {limit:g} s") from None
        except Unreachable:
            await self.close()
            raise

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Outcome:
        """Call a tool; never raises for what the server does."""
        sdk = need("mcp", "mcp")
        if self._client is None:
            return Outcome("died", "Error: the tool's server has ended.")
        try:
            result = await asyncio.wait_for(self._client.call_tool(name, dict(arguments)), self.spec.timeout)
        except asyncio.TimeoutError:
            return Outcome("timeout", f"Error: no answer within {self.spec.timeout:g} s.")
        except sdk.MCPError as error:
            if error.code == need("mcp.types", "mcp").CONNECTION_CLOSED or self._has_ended:
                return Outcome("died", "Error: the tool's server ended before it answered.")
            return Outcome("error", f"Error: {error.message}")
        except Exception as error:  # what a server sends may break the SDK anywhere
            return Outcome("died", f"Error: the tool's server gave no result ({one_line(str(error))}).")
        return Outcome("error" if result.is_error else "ok", result_text(result))

    async def answers(self) -> bool:
        """True if the server still lists its tools; a server that hangs does not."""
        if self._client is None or self._has_ended:
            return False
        try:
            await asyncio.wait_for(self._client.list_tools(cache_mode="bypass"), self.spec.timeout)
        except Exception:
            return False
        return True

    async def close(self) -> None:
        """End the connection and, of stdio, the server with all its processes."""
        self._closing.set()
        if self._task is None:
            return
        if self._client is None:  # it is still opening, and may hang there
            self._task.cancel()
        _, unfinished = await asyncio.wait({self._task}, timeout=ENDING)
        if unfinished:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=ENDING)

    @property
    def _has_ended(self) -> bool:
        return self._task is None or self._task.done()

    async def _run(self, is_open: asyncio.Future[None]) -> None:
        """Hold the connection open until `close`; failures before that are `Unreachable` in `is_open`."""
        try:
            async with _transport(self.spec) as transport, need("mcp", "mcp").Client(transport) as client:
                self.tools = {tool.name: tool for tool in await _listed(client)}
                self._client = client
                is_open.set_result(None)
                await self._closing.wait()
        except BaseException as error:
            if not is_open.done():
                is_open.set_exception(Unreachable(_reason(error)))
                is_open.exception()  # read here, since nobody else may wait for it any more
            # a connection that breaks later shows in the calls under way, which answer "died"
            if not isinstance(error, Exception) and not hasattr(error, "exceptions"):
                raise
        finally:
            self._client = None


async def _listed(client: Any) -> list[Any]:
    """All pages of a server's list of tools."""
    tools: list[Any] = []
    cursor = None
    for _ in range(PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        tools += page.tools
        if not (cursor := page.next_cursor):
            return tools
    raise Unreachable(f"its list of tools has more than {PAGES} pages")


@contextlib.asynccontextmanager
async def _transport(spec: ServerSpec) -> AsyncIterator[Any]:
    """The SDK's transport for a server."""
    if spec.command:
        yield _program(spec)
        return
    http, streamable = need("httpx2", "mcp"), need("mcp.client.streamable_http", "mcp")
    # the client has no time limit of its own: `call` has the run's
    async with http.AsyncClient(headers=headers_of(spec), timeout=http.Timeout(spec.timeout, read=None)) as client:
        yield streamable.streamable_http_client(spec.url, http_client=client)


def _program(spec: ServerSpec) -> Any:
    """Transport to a program, the child of a guard that ends what it leaves behind, also when this process is killed.

    It gets the SDK's short list of variables (HOME, PATH...) and those of the entry: no keys of the run's environment.
    """
    stdio = need("mcp.client.stdio", "mcp")
    words = spec.words
    if shutil.which(words[0]) is None:
        raise Unreachable(f"there is no program {words[0]!r}")
    guard, *arguments = process_tree.guard_command(os.getpid(), -1, words)
    environment = {**stdio.get_default_environment(), **spec.env}
    parameters = stdio.StdioServerParameters(command=guard, args=arguments, env=environment)
    return stdio.stdio_client(parameters, errlog=sys.__stderr__ or open(os.devnull, "w"))


def headers_of(spec: ServerSpec) -> dict[str, str]:
    """Headers for a server that is reached by its URL; ConfigError for a key that is not set, or not allowed there."""
    if not spec.url:
        return {}
    address = urlsplit(spec.url)
    key = key_for(address.scheme, address.hostname or "", address.port, spec.key_from, "env.mcp")
    if spec.key_from is not None and key is None:
        raise ConfigError(f"env.mcp: the variable {spec.key_from} (key_from) is not set")
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def _reason(error: BaseException) -> str:
    """The first cause of a failed connection, in a line: task groups wrap it in groups of exceptions."""
    while causes := getattr(error, "exceptions", ()):
        error = causes[0]
    text = str(error) or type(error).__name__
    return one_line(text if isinstance(error, Unreachable) else f"{type(error).__name__}: {text}")


def run_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of another thread, and wait for it; an interrupt cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
