"""Connections of the endpoint: how many there are, and how long a client may take to ask and to read its answer."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # for the head of a request, from the connection or the answer before
BODY_SECONDS = 30.0  # for the body after the head; for reading an answer
LARGEST_HEAD = 1 << 16  # bytes
LEFT_UNREAD = 1 << 26  # bytes of a refused body that are read and dropped, so that the client gets the refusal
FEWEST, MOST = 64, 4096  # connections


def most_connections() -> int:
    """Half of the files that this process may open, within bounds."""
    try:
        import resource
    except ImportError:  # Windows
        return FEWEST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST, max(FEWEST, soft // 2)) if soft > 0 else MOST


def protocol(most: int) -> type[H11Protocol]:
    """uvicorn's protocol of a connection with these limits, for `uvicorn.Config(http=...)`.

    Where there are more than `most` connections, the one that has waited longest for its client is closed.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        since = 0.0  # when the client's turn began
        _unread = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            # asyncio leaves it off here, and a body would wait some 40 ms for the receipt of the head before it
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.since = self.loop.time()
            if len(self.connections) > most:
                waiting = [c for c in self.connections if isinstance(c, Connection) and c.patience() is not None]
                min(waiting, key=lambda c: c.since, default=self).transport.abort()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            before = self.conn.their_state, self.cycle
            if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
                self._unread += len(data)
                if self._unread > LEFT_UNREAD:
                    self.transport.abort()
                    return
            super().data_received(data)
            if (self.conn.their_state, self.cycle) != before:
                self.since = self.loop.time()

        def on_response_complete(self) -> None:
            self.since = self.loop.time()
            super().on_response_complete()

        def pause_writing(self) -> None:
            self.since = self.loop.time()
            super().pause_writing()

        def patience(self) -> float | None:
            """Seconds that the client may take, None where it is not its turn."""
            if self.conn.their_state is h11.IDLE:
                return HEAD_SECONDS
            if self.conn.their_state is h11.SEND_BODY or self.flow.write_paused:
                return BODY_SECONDS
            return None

        def _look(self) -> None:
            """Close the connection where its client has taken too long; look again later."""
            patience = self.patience()
            left = HEAD_SECONDS if patience is None else self.since + patience - self.loop.time()
            if left <= 0:
                self.transport.abort()
            else:
                self._timer = self.loop.call_later(min(left, HEAD_SECONDS), self._look)

    return Connection
