"""A server on loopback that says anything: what it sends is bytes, not HTTP that a library has put right."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Request = tuple[str, dict[str, str], bytes]  # first line, headers in lower case, body


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer."""
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def said(content: Any, **choice: Any) -> bytes:
    """A chat completion."""
    return http(json.dumps({"choices": [{"message": {"content": content}, **choice}]}).encode())


@contextmanager
def answering(answer: Callable[[Request], bytes | Iterable[bytes]]) -> Iterator[tuple[str, list[Request]]]:
    """The server's address, and the requests that it has read; after each answer it closes the connection."""
    requests: list[Request] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            first, headers = self.rfile.readline().decode("latin-1").strip(), {}
            while line := self.rfile.readline().decode("latin-1").strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            if not first:
                return
            request = (first, headers, self.rfile.read(int(headers.get("content-length", 0))))
            requests.append(request)
            pieces = answer(request)
            with suppress(OSError):
                for piece in [pieces] if isinstance(pieces, bytes) else pieces:
                    self.wfile.write(piece)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", requests
    finally:
        server.shutdown()
        server.server_close()
