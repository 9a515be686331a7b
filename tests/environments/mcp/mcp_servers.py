"""MCP servers of the official SDK for tests: this file speaks over stdio; `over_http` serves in a thread."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

PICTURE = bytes.fromhex("89504e470d0a1a0a")


def calculator() -> MCPServer:
    """Server with tools that work, fail, dawdle, flood, count and die."""
    server = MCPServer("calculator", log_level="CRITICAL")
    state = {"count": 0}

    @server.tool()
    def add(a: int, b: int) -> str:
        """Sum of two whole numbers."""
        return str(a + b)

    @server.tool()
    def root(x: float) -> str:
        """Square root."""
        if x < 0:
            raise ToolError("no root of a negative number")
        return str(x**0.5)

    @server.tool()
    def count() -> str:
        """Number of calls so far."""
        state["count"] += 1
        return str(state["count"])

    @server.tool()
    def slow(seconds: float) -> str:
        """Answer after some seconds."""
        time.sleep(seconds)
        return "late"

    @server.tool()
    def flood(characters: int) -> str:
        """Answer with many characters."""
        return "x" * characters

    @server.tool()
    def picture() -> list[str | Image]:
        """A text and a picture."""
        return ["here it is", Image(data=PICTURE, format="png")]

    @server.tool()
    def pid() -> str:
        """Process id of the server."""
        return str(os.getpid())

    @server.tool()
    def crash() -> str:
        """End the server."""
        os._exit(3)

    @server.tool()
    def hidden() -> str:
        """Not in any `allow`."""
        return "secret"

    return server


def listing(tools: list[Tool]) -> Server:
    """Server that lists these tools, as they are at the time, and answers each call with the tool's name."""

    async def list_tools(context: object, params: object) -> ListToolsResult:
        return ListToolsResult(tools=list(tools))

    async def call_tool(context: object, params: object) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text=params.name)])  # type: ignore[attr-defined]

    return Server("listing", on_list_tools=list_tools, on_call_tool=call_tool)


@contextlib.contextmanager
def over_http(server: MCPServer | Server) -> Iterator[str]:
    """Serve on a free port of this machine, in a thread; gives the URL."""
    app = server.streamable_http_app()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        web = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on"))
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not web.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            web.should_exit = web.force_exit = True
            thread.join(5)


if __name__ == "__main__":
    if len(sys.argv) > 1:  # a file: the server leaves its process id there
        with open(sys.argv[1], "a", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    calculator().run()
