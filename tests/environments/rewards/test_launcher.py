"""Isolation by the launcher: files, processes, network and signals of a sandboxed program."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile

import pytest

from gxpo.environments.rewards import launcher
from gxpo.environments.rewards.sandbox import Limits, Local

LOCAL = Local()
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux holds them")


def run(program, stdin="", **limits):
    return LOCAL.run({"main.py": program}, stdin, Limits(**{"wall": 10.0, "cpu": 10, **limits}))


def needs(name):
    if not getattr(LOCAL.isolation(), name):
        pytest.skip(f"the kernel does not let this user hold {name!r}")


@pytest.fixture(params=["all", "no namespaces", "nothing"])
def kernel(request, monkeypatch):
    """What the kernel has to give: all that this one has, all but namespaces, or neither these nor Landlock."""
    less = {"all": "", "no namespaces": "launcher.ATTEMPTS = (); "}
    less["nothing"] = less["no namespaces"] + "launcher.CREATE_RULESET = 99999; "
    monkeypatch.setattr(
        launcher, "START", launcher.START.replace("launcher.main", less[request.param] + "launcher.main")
    )


@LINUX
def test_files_cannot_fill_the_disk_and_are_always_removed(kernel, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tmp_path.chmod(0o755)
    fill = (
        "import os, time\nos.mkdir('d')\n"
        "try:\n    for i in range(99): open(f'd/{i}', 'wb').write(bytes(%d))\n    wait = %g\n"
        "except OSError as error: print(error.strerror); wait = 0\n"
        "os.chmod('d', 0)\nos.chmod('.', 0)\ntime.sleep(wait)"
    )
    deep = "import os, time\nfor _ in range(900):\n    os.mkdir('d')\n    os.chdir('d')\ntime.sleep(9)"
    for program, limits in (
        (fill % (1 << 18, 9), {"disk": 1 << 20}),  # 25 times what it may
        (fill % (0, 9), {"entries": 20}),
        (deep, {"entries": 99}),
    ):
        result = run(program, **limits)
        assert result.status == "disk" or "No space left" in result.stdout + result.stderr
    assert run(fill % (1 << 18, 0), disk=1 << 28).status == "ok"
    assert os.listdir(tmp_path) == []


@LINUX
def test_what_may_be_read(kernel, tmp_path):
    result = run(
        "import json, os\n"
        "def can(path):\n    try: return bool(os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(9))\n"
        "    except PermissionError: return False\n"
        "print([can(p) for p in (json.__file__, '/usr', '/etc/passwd', '.', '/tmp', '/etc', '/var')])"
    )
    reads = LOCAL.isolation().reads and "99999" not in launcher.START
    assert result.stdout == f"[True, True, True, True, {not reads}, {not reads}, {not reads}]\n"


# At most 2^6 processes, for a second: a fork bomb that is small enough should nothing hold it.
BOMB = """
import os, sys, time
refused = 0
for _ in range(6):
    try:
        os.fork()
        if LEAVE and os.getpid() != os.getsid(0):
            os.setsid()
    except OSError:
        refused = 1
if refused:
    print("refused", flush=True)
time.sleep(0.4)
"""


@pytest.mark.parametrize("leave", [False, True])
def test_a_fork_bomb_is_held_by_the_kernel(leave):
    needs("number")
    result = run(BOMB.replace("LEAVE", str(leave)), processes=8)
    assert result.status in ("ok", "processes") and (result.status == "processes" or "refused" in result.stdout)


@LINUX
def test_what_a_program_leaves_behind_ends_with_it(kernel):
    mark = f"gxpo-left-{os.getpid()}"
    program = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)', '{mark}'], start_new_session=True)\n"
        "print('gone')"
    )
    result = run(program)
    assert (result.status, result.stdout) == ("ok", "gone\n") and result.seconds < 8
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in listed.splitlines() if mark in line]


def test_there_is_no_network_not_even_to_this_machine():
    needs("network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)\nprint('there')"
        plain = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert plain.stdout == "there\n"  # it could be reached
        result = run(program)
    assert result.status == "failed" and "there" not in result.stdout and "socket.py" in result.stderr


def test_it_can_write_nowhere_but_in_its_directory(tmp_path):
    needs("files")
    tmp_path.chmod(0o777)
    target = tmp_path / "written"
    result = run(f"open('mine', 'w').write('a')\nprint(open('mine').read())\nopen({str(target)!r}, 'w')")
    assert result.stdout == "a\n" and "Read-only file system" in result.stderr and not target.exists()


def test_it_can_not_signal_who_started_it():
    needs("processes")
    result = run(f"import os, signal\nprint(os.getppid() == {os.getpid()})\nos.kill({os.getpid()}, 0)")
    assert result.status == "failed" and result.stdout == "False\n" and "ProcessLookupError" in result.stderr
