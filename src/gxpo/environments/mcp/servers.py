"""MCP servers of a run: their tools, calls to them, and new starts of those that end or hang."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.base.errors import ConfigError, GxpoError, did_you_mean
from gxpo.environments.mcp.connection import Connection, Unreachable
from gxpo.environments.mcp.results import FAILURES, Outcome, bounded, function_schema
from gxpo.environments.mcp.settings import ServerSpec

STARTS = 8  # processes of one entry that start at the same time
PAUSE = 1.0  # seconds after a start that failed, in which calls fail without another try


class Server:
    """A server that is started at its first call, and again after it has ended or hangs.

    offered      schemas of the allowed tools, as the run shows them; a server that comes back with others ends the run
    concurrency  calls under way at the same time
    starts       limit of simultaneous starts, of all servers of one entry
    """

    def __init__(
        self, spec: ServerSpec, offered: Mapping[str, Any], concurrency: int, starts: asyncio.Semaphore
    ) -> None:
        self.spec, self.offered = spec, offered
        self._calls, self._starts = asyncio.Semaphore(concurrency), starts
        self._starting = asyncio.Lock()
        self._connection: Connection | None = None
        self._failed: tuple[float, Unreachable] | None = None  # when the newest start failed, and why

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Outcome:
        """Call a tool; its text is bounded. GxpoError if the server comes back with other tools."""
        async with self._calls:
            try:
                connection = await self._connected()
            except Unreachable as error:
                text = f"Error: the tool's server can't be started ({error})."
                return Outcome("unreachable", bounded(text, self.spec.chars))
            outcome = await connection.call(name, arguments)
            # a tool may be slow while its server is sound; one that does not even list its tools is replaced
            if outcome.kind in FAILURES and not await connection.answers():
                await self._drop(connection)
            return Outcome(outcome.kind, bounded(outcome.text, self.spec.chars))

    async def close(self) -> None:
        """End the server."""
        if self._connection is not None:
            await self._drop(self._connection)

    async def _connected(self) -> Connection:
        async with self._starting:
            if self._connection is not None:
                return self._connection
            # many calls wait here at once: one try is enough for all of them
            now = asyncio.get_running_loop().time
            if self._failed is not None and now() - self._failed[0] < PAUSE:
                raise self._failed[1]
            connection = Connection(self.spec)
            try:
                async with self._starts:
                    await connection.open()
            except Unreachable as error:
                self._failed = (now(), error)
                raise
            self._connection, self._failed = connection, None
            self._check_tools(connection)
            return connection

    def _check_tools(self, connection: Connection) -> None:
        """Raise GxpoError if the server lists other tools than those that the run shows."""
        now = schemas_of(self.spec, connection.tools)
        for name, schema in self.offered.items():
            if json.dumps(now[name], sort_keys=True) != json.dumps(schema, sort_keys=True):
                raise GxpoError(
                    f"MCP server {self.spec.label} describes its tool {name!r} otherwise than when the run began: "
                    "rollouts before and after would not be comparable"
                )

    async def _drop(self, connection: Connection) -> None:
        # several calls may find the same connection dead: the first one drops it
        if self._connection is connection:
            self._connection = None
        await connection.close()


def schemas_of(spec: ServerSpec, tools: Mapping[str, Any]) -> dict[str, Any]:
    """Schemas of a server's allowed tools, in OpenAI's format; ConfigError for one that it does not list.

    tools  what it lists: the SDK's objects by name
    """
    schemas = {}
    for name in spec.allow:
        if name not in tools:
            hint = did_you_mean(name, tools) or f"; it has {', '.join(tools) or 'none'}"
            raise ConfigError(f"MCP server {spec.label} has no tool {name!r}{hint}")
        tool = tools[name]
        schemas[name] = function_schema(name, tool.description, tool.input_schema, spec.label)
    return schemas


async def offered_by(specs: Sequence[ServerSpec]) -> list[dict[str, Any]]:
    """Ask each server once for its allowed tools; ConfigError for servers that can't be reached and names that clash.

    The connections are closed again: what the run needs is started when it is called.
    """
    offered: list[dict[str, Any]] = []
    owner_by_tool: dict[str, ServerSpec] = {}
    for spec in specs:
        connection = Connection(spec)
        try:
            await connection.open()
            offered.append(schemas_of(spec, connection.tools))
        except Unreachable as error:
            raise ConfigError(f"MCP server {spec.label}: {error}") from error
        finally:
            await connection.close()
        # a call names a tool alone: with two of one name, which server is meant would be a guess
        for name in spec.allow:
            if name in owner_by_tool:
                raise ConfigError(
                    f"tool {name!r} is allowed of two MCP servers, {owner_by_tool[name].label} and {spec.label}: leave "
                    "it out of one allow"
                )
            owner_by_tool[name] = spec
    return offered
