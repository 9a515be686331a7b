"""Check for whom a request is meant and which page sent it, so that no web site reaches the endpoint by a browser.

A page can have its own host name resolve to this machine (DNS rebinding): then its requests name that host. Requests of
a page to another site carry the page's origin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gxpo.base.errors import ConfigError
from gxpo.sampling.serve.outcome import short_repr
from gxpo.sampling.serve.refusal import Refused

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+?)\.?(:\d{1,5})?")


def host_names(names: Iterable[str], key: str) -> frozenset[str]:
    """Names under which the endpoint answers: those of loopback and the given ones; `key` says where these stand."""
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
    """Raise `Refused` (403) for a request to another host, or of another site's page."""
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
    return [value.decode("latin-1").strip().lower() for key, value in headers if key.lower() == name]
