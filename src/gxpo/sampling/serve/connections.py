"""Limits on the endpoint's connections: which hosts and pages may call, how many connections, how slow a client.

A web page can have its own host name resolve to this machine (DNS rebinding): its requests then name that host. The
requests of a page to another site carry the page's origin. Both are refused, so that no web site reaches the endpoint
through a browser.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import ConfigError
from gxpo.sampling.serve.outcome import short_repr
from gxpo.sampling.serve.request import Refused

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # for the head of a request, from the start of the connection or the response before
BODY_SECONDS = 30.0  # for the body after the head; for reading a response
LARGEST_HEAD = 1 << 16  # bytes
LEFT_UNREAD = 1 << 26  # bytes of a refused body that are read and dropped, so that the client gets the refusal
FEWEST, MOST = 64, 4096  # connections

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+?)\.?(:\d{1,5})?")


# ---------------------------------------------------------------- hosts and origins
def host_names(names: Iterable[str], key: str) -> frozenset[str]:
    """Host names under which the endpoint answers: loopback's and `names`, which come from the setting `key`."""
    out: set[str] = set(LOOPBACK)
    for name in names:
        match = HOST.fullmatch(name.lower()) if isinstance(name, str) else None
        if match is None or match[2]:
            raise ConfigError(
                f"{key} has {short_repr(name)}: give a host name or address alone, as host.docker.internal"
            )
        out.add(match[1])
    return frozenset(out)


def check_origin(headers: Sequence[tuple[bytes, bytes]], names: frozenset[str]) -> None:
    """Raise `Refused` (403) for a request to another host name or from another site's page."""
    hosts = _values(headers, b"host")
    match = HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if match is None or match[1] not in names:
        host_text = short_repr(hosts[0]) if len(hosts) == 1 else "no host, or several"
        raise Refused(
            f"the request names {host_text}, and the endpoint answers as {', '.join(sorted(names))} alone; allow "
            "another name with rollout.allowed_hosts, or gxpo serve --allow-host",
            status=403,
            code="host_not_allowed",
        )
    foreign = [o for o in _values(headers, b"origin") if o != f"http://{hosts[0]}"]
    foreign += [s for s in _values(headers, b"sec-fetch-site") if s not in ("same-origin", "none")]
    if foreign:
        raise Refused(
            f"a web page of another site sent the request ({short_repr(foreign[0])}): call the endpoint from a program",
            status=403,
            code="origin_not_allowed",
        )


def _values(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """Values of all headers of a name, in lower case."""
    return [value.decode("latin-1").strip().lower() for key, value in headers if key.lower() == name]


# ---------------------------------------------------------------- limits
def most_connections() -> int:
    """Limit on connections: half of the files that this process may open, within bounds."""
    try:
        import resource
    except ImportError:  # Windows
        return FEWEST
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST, max(FEWEST, soft // 2)) if soft > 0 else MOST


def protocol(limit: int) -> type[H11Protocol]:
    """Build uvicorn's protocol class with these limits, for `uvicorn.Config(http=...)`.

    With more than `most` connections, the one that has waited longest for its client is closed.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        since = 0.0  # when the client's turn began
        _n_unread = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            # asyncio leaves it off here, and a body would wait some 40 ms for the acknowledgement of its head.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.since = self.loop.time()
            if len(self.connections) > limit:
                idle = [c for c in self.connections if isinstance(c, Connection) and c.patience() is not None]
                min(idle, key=lambda c: c.since, default=self).transport.abort()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            # After an early refusal the client still sends its body: read some of it, or it never sees the refusal.
            before = self.conn.their_state, self.cycle
            if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
                self._n_unread += len(data)
                if self._n_unread > LEFT_UNREAD:
                    self.transport.abort()
                    return
            # Only progress restarts the clock, a new part of a request: a byte now and then must not hold a connection.
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
            """Seconds that the client may take; None while the server has to answer."""
            if self.conn.their_state is h11.IDLE:
                return HEAD_SECONDS
            if self.conn.their_state is h11.SEND_BODY or self.flow.write_paused:
                return BODY_SECONDS
            return None

        def _look(self) -> None:
            """Close the connection if its client has taken too long, else check again later."""
            patience = self.patience()
            seconds_left = HEAD_SECONDS if patience is None else self.since + patience - self.loop.time()
            if seconds_left <= 0:
                self.transport.abort()
            else:
                self._timer = self.loop.call_later(min(seconds_left, HEAD_SECONDS), self._look)

    return Connection
