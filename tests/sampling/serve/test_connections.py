"""Limits on connections: slow clients, many clients, and pages of other sites."""

from __future__ import annotations

import socket

import pytest
from tests.sampling.serve.agent_session import HTTP, ask, user
from tests.sampling.serve.test_http import serving

from gxpo.base.errors import ConfigError
from gxpo.sampling.serve import connections
from gxpo.sampling.serve.connections import FEWEST, MOST, check_origin, host_names, most_connections
from gxpo.sampling.serve.request import Refused


def is_closed(port: int, data: bytes) -> bool:
    """Return True if the connection is closed without an answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as line:
        line.sendall(data)
        try:
            return line.recv(1) == b""
        except ConnectionResetError:
            return True


def test_connections_of_clients_that_stall_are_closed(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.3)
    head = b"POST /sk-1/v1/reward HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    with serving(lambda read, key: "x") as (url, _, _):
        port = int(url.split(":")[2].split("/")[0])
        assert all(is_closed(port, part) for part in (b"", head, head + b"\r\n{"))
        assert ask(url, "sk-1", [user("x")])["content"] == "x"


def test_idle_connections_make_room_for_a_caller(monkeypatch):
    monkeypatch.setattr(connections, "most_connections", lambda: 20)
    with serving(lambda read, key: "x") as (url, _, _):
        port = int(url.split(":")[2].split("/")[0])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        assert ask(url, "sk-1", [user("x")])["content"] == "x"
        for line in idle:
            line.close()


# ---------------------------------------------------------------- web pages
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 200, None),
        ({"Host": "localhost"}, 200, None),
        ({"Host": "LOCALHOST:8000"}, 200, None),
        ({"Host": "[::1]:8000"}, 200, None),
        ({"Host": "host.docker.internal:8000"}, 200, None),
        ({"Host": "evil.example"}, 403, "host_not_allowed"),
        ({"Host": "127.0.0.1.evil.example:8000"}, 403, "host_not_allowed"),
        ({"Host": "localhost:8000@evil.example"}, 403, "host_not_allowed"),
        ({"Host": ""}, 403, "host_not_allowed"),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200, None),
        ({"Host": "localhost:8000", "Origin": "http://localhost:3000"}, 403, "origin_not_allowed"),
        ({"Origin": "https://evil.example"}, 403, "origin_not_allowed"),
        ({"Origin": "null"}, 403, "origin_not_allowed"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "origin_not_allowed"),
        ({"Sec-Fetch-Site": "none"}, 200, None),
    ],
)
def test_pages_of_other_sites_are_refused(headers, status, code):
    with serving(lambda read, key: "x", hosts=host_names(["Host.Docker.internal"], "x")) as (url, _, _):
        answer = HTTP.get(f"{url}/models", headers={"Authorization": "Bearer sk-1", **headers})
        assert answer.status_code == status
        assert code is None or answer.json()["error"]["code"] == code


def test_host_names_are_loopbacks_and_the_allowed_ones():
    loopback = {"127.0.0.1", "localhost", "[::1]"}
    assert host_names([], "x") == loopback and host_names(["Gateway.", "10.0.0.2"], "x") == loopback | {
        "gateway",
        "10.0.0.2",
    }


@pytest.mark.parametrize("name", ["", "localhost:8000", "http://a", "a b", "*", 7])
def test_an_allowed_host_is_a_name_without_a_port(name):
    with pytest.raises(ConfigError, match=r"allowed_hosts has .*give a host name or address alone"):
        host_names([name], "allowed_hosts")


@pytest.mark.parametrize("headers", [[], [(b"host", b"localhost"), (b"Host", b"evil.example")]])
def test_a_request_names_exactly_one_host(headers):
    with pytest.raises(Refused, match="names no host, or several") as caught:
        check_origin(headers, host_names([], "x"))
    assert caught.value.status == 403


@pytest.mark.parametrize(("files", "expected"), [(100, FEWEST), (1000, 500), (10**6, MOST), (-1, MOST)])
def test_connections_may_take_half_of_the_open_files(monkeypatch, files, expected):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    assert most_connections() == expected
