"""Docker sandbox: its command line, and its failures, with a stand-in for docker."""

from __future__ import annotations

import os

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.docker import Docker
from gxpo.environments.rewards.sandbox import Limits


# ---------------------------------------------------------------- docker
def test_the_command_of_a_container():
    limits = Limits(wall=3.0, cpu=2, memory=256 << 20, processes=8, output=100, file_size=4096)
    command = Docker("python:3.12-slim", "runsc").command("name", "/tmp/x", limits)
    line = " ".join(command)
    assert command[:5] == ["docker", "run", "--rm", "--interactive", "--name"]
    assert command[-3:] == ["python:3.12-slim", "python", "/sandbox/program/main.py"]
    for part in (
        "--network none", "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges", "--user 65534:65534",
        "--pids-limit 8", "--memory 268435456 --memory-swap 268435456", "--ulimit cpu=2", "--ulimit fsize=4096",
        "--volume /tmp/x:/sandbox/program:ro", "size=16777216,nr_inodes=1024", "--runtime runsc", "--pull never",
    ):  # fmt: skip
        assert part in line
    assert "--runtime" not in Docker().command("name", "/tmp/x", limits)


def test_without_docker_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is no docker command; install Docker .* or set .*sandbox to local"):
        Docker().check()
    assert Docker().run({"main.py": ""}).status == "broken"


def fake(tmp_path, monkeypatch, body):
    """A `docker` that does `body`, first on the path."""
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{body}\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_a_daemon_that_does_not_run_and_an_image_that_is_missing(monkeypatch, tmp_path):
    fake(tmp_path, monkeypatch, "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    with pytest.raises(ConfigError, match=r"Cannot connect .*: start the docker daemon"):
        Docker().check()
    fake(tmp_path, monkeypatch, "echo 'Error: No such image: x' >&2; exit 1")
    with pytest.raises(ConfigError, match=r"No such image.*`docker pull python:3\.12-slim`"):
        Docker().check()


def test_errors_of_docker_differ_from_errors_of_the_program(monkeypatch, tmp_path):
    fake(tmp_path, monkeypatch, "echo 'docker: no such runtime' >&2; exit 125")
    assert Docker().run({"main.py": ""}).status == "broken"
    fake(tmp_path, monkeypatch, "cat; exit 0")
    assert Docker().run({"main.py": ""}, "hello").stdout == "hello"
    fake(tmp_path, monkeypatch, "exit 1")
    assert Docker().run({"main.py": ""}).status == "failed"
    fake(tmp_path, monkeypatch, "exec head -c 100000 /dev/zero")
    big = Docker().run({"main.py": ""}, limits=Limits(output=1000))
    assert big.status == "output" and len(big.stdout) == 1000
