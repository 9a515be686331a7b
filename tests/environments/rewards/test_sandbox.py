"""What a sandbox lets a program do, and what it does not. Every program here ends by itself within seconds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards import launcher
from gxpo.environments.rewards.docker import Docker
from gxpo.environments.rewards.sandbox import Limits, Local, descendants

LOCAL = Local()
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the local sandbox needs Linux or macOS")
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


def test_a_program_reads_its_input_and_its_files_and_leaves_nothing():
    files = {"main.py": "import beside, os\nprint(input()[::-1], beside.X, sorted(os.listdir('.')), os.getcwd())",
             "beside.py": "X = 7"}  # fmt: skip
    result = LOCAL.run(files, "abc\n")
    assert (result.status, result.stderr) == ("ok", "")
    said, place = result.stdout.rsplit(" ", 1)
    assert said == "cba 7 ['beside.py', 'main.py']"
    assert Path(place.strip()).name.startswith("gxpo-sandbox-") and not Path(place.strip()).exists()


def test_how_a_program_ends_is_told():
    wrong = run("import sys\nprint('half')\nsys.exit(3)")
    assert (wrong.status, wrong.stdout) == ("failed", "half\n")
    assert "ZeroDivisionError" in run("1/0").stderr
    assert run("import os\nos.abort()").status == "failed"
    with pytest.raises(ValueError, match="lie in one folder"):
        LOCAL.run({"../main.py": ""})


def test_nothing_of_the_callers_environment_and_files(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with open(tmp_path / "open", "w") as file:
        os.set_inheritable(file.fileno(), True)
        seen = run(
            "import os\nprint(sorted(os.environ), len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc') else 4)"
        )
    assert seen.stdout == "['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED', 'TMPDIR'] 4\n"  # 0 1 2 and the listing's own


def test_an_endless_loop_and_an_endless_sleep_are_ended():
    begun = time.monotonic()
    assert run("while True: pass", wall=0.4).status == "timeout"
    assert run("import time\ntime.sleep(60)", wall=0.4).status == "timeout"
    assert time.monotonic() - begun < 8
    slow = run("print('before', flush=True)\nwhile True: pass", wall=9.0, cpu=1)
    assert (slow.status, slow.stdout) == ("timeout", "before\n") and slow.seconds < 8


@LINUX
def test_a_gigabyte_is_refused_inside_the_program():
    result = run("try:\n    x = bytearray(1 << 30)\n    print(len(x))\nexcept MemoryError:\n    print('no')")
    assert (result.status, result.stdout) == ("ok", "no\n")


def test_huge_output_is_cut_off():
    for stream in ("stdout", "stderr"):
        result = run(f"import sys\nfor _ in range(10**5): sys.{stream}.write('x' * 1000)", output=5000)
        assert result.status == "output" and len(getattr(result, stream)) == 5000
    assert run("print('x' * 4000)", output=5000).status == "ok"


@LINUX
def test_a_file_can_not_grow_beyond_its_limit():
    result = run("with open('big', 'wb') as f: f.write(bytes(1 << 21))")
    assert result.status == "failed" and "File too large" in result.stderr


@LINUX
def test_files_can_not_fill_the_disk_and_are_gone_whatever_their_modes(kernel, monkeypatch, tmp_path):
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
def test_where_the_kernel_does_not_count_the_watcher_does():
    # eight sleepers, started one after the other; the kernel is given a higher limit than the watcher
    program = "import subprocess, sys, time\nfor _ in range(8): subprocess.Popen(['sleep', '3'])\ntime.sleep(3)"
    begun = time.monotonic()

    class Patient(int):
        """What is written down for the kernel is larger."""

        def __int__(self):
            return 64

    result = LOCAL.run({"main.py": program}, "", Limits(wall=8.0, processes=Patient(3)))
    assert result.status == "processes" and time.monotonic() - begun < 2.9


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
        asked = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)\nprint('there')"
        plain = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
        assert plain.stdout == "there\n"  # it could be reached
        result = run(asked)
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


def test_many_run_at_a_time_from_threads():
    out = {}

    def one(i):
        out[i] = run(f"print({i})").stdout

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == {i: f"{i}\n" for i in range(6)}


def test_no_file_stays_open_and_no_process_alive():
    run("print(1)")
    others = set(descendants(os.getpid()))  # of whatever ran in this process before
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        run("print(1)")
        run("while True: pass", wall=0.2)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before and set(descendants(os.getpid())) <= others


def test_a_sandbox_that_can_not_start_is_broken_not_failed():
    result = Local(python="/nowhere/python").run({"main.py": ""})
    assert result.status == "broken" and "No such file" in result.stderr
    with pytest.raises(ConfigError, match=r"can't run Python here \(broken"):
        Local(python="/nowhere/python").check()
    LOCAL.check()


def test_limits_that_allow_nothing_are_refused():
    for wrong in ({"wall": 0.0}, {"cpu": 0}, {"memory": 10}, {"processes": 0}, {"output": 0}, {"wall": True},
                  {"disk": 0}, {"entries": 1}):  # fmt: skip
        with pytest.raises(ConfigError, match=f"sandbox: {next(iter(wrong))}="):
            Limits(**wrong)


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


def test_what_docker_says_is_told_apart_from_what_the_program_does(monkeypatch, tmp_path):
    fake(tmp_path, monkeypatch, "echo 'docker: no such runtime' >&2; exit 125")
    assert Docker().run({"main.py": ""}).status == "broken"
    fake(tmp_path, monkeypatch, "cat; exit 0")
    assert Docker().run({"main.py": ""}, "hello").stdout == "hello"
    fake(tmp_path, monkeypatch, "exit 1")
    assert Docker().run({"main.py": ""}).status == "failed"
    fake(tmp_path, monkeypatch, "exec head -c 100000 /dev/zero")
    big = Docker().run({"main.py": ""}, limits=Limits(output=1000))
    assert big.status == "output" and len(big.stdout) == 1000
