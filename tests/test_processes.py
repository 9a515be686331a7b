"""gxpo.processes: a program that hangs, dies or talks nonsense is noticed, ended and described."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gxpo import processes
from gxpo.processes import Process

PROGRAM = """
import json, os, pickle, signal, sys, time

def serve(connection):
    while True:
        what = pickle.loads(connection.recv_bytes())
        if what == "die":
            os._exit(3)
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "sleep":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        if what == "raise":
            raise ValueError("on purpose")
        if what == "garbage":
            connection.send_bytes(b"{")
        elif what == "half":
            os.write(connection.fileno(), b"\\0\\0\\0\\x09abc")
            time.sleep(1000)
        elif what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "print":
            print("a program may print")
            connection.send_bytes(b'"printed"')
        elif what == "about":
            about = [os.getpid(), os.getsid(0), sys.stdin.read(), os.get_inheritable(connection.fileno())]
            about.append([name for name in ("torch", "numpy") if name in sys.modules])
            connection.send_bytes(json.dumps(about).encode())
        else:
            connection.send_bytes(json.dumps(what).encode())
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.fixture
def running(program: str) -> Iterator[Process]:
    process = Process(program)
    yield process
    process.close()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_messages_go_in_and_answers_come_out(running: Process) -> None:
    for message in ({"a": [1, None, "\ud800"]}, "x" * 1_000_000, [1.5]):
        running.send(message)
        assert running.receive(60) == message


def test_it_stands_apart(running: Process) -> None:
    running.send("about")
    assert running.receive(60) == [running.process.pid, running.process.pid, "", False, []]
    running.send("print")
    assert running.receive(60) == "printed"


@pytest.mark.parametrize(
    ("what", "code"), [("die", "exit code 3"), ("kill", "signal SIGKILL"), ("raise", "exit code 1")]
)
def test_one_that_ends_is_described(running: Process, what: str, code: str) -> None:
    running.send(what)
    with pytest.raises((EOFError, OSError)):
        running.receive(60)
    assert running.exit_code() == code
    with pytest.raises(OSError):
        running.send("more")


def test_one_that_hangs_gives_none_and_can_be_ended(running: Process) -> None:
    running.send("sleep")
    assert running.receive(0.05) is None
    running.close()
    assert running.exit_code() == "signal SIGKILL"
    assert not runs(running.process.pid)


def test_what_is_no_answer_is_an_end(running: Process) -> None:
    running.send("garbage")
    with pytest.raises(EOFError, match="no answer"):
        running.receive(60)


def test_half_an_answer_and_a_message_that_nobody_reads_do_not_wait_for_ever(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STUCK", 1)
    half, stopped = Process(program), Process(program)
    half.send("half")
    with pytest.raises(OSError):
        half.receive(60)
    half.close()
    stopped.send("stop")
    with pytest.raises(OSError):
        stopped.send("x" * 10_000_000)
    stopped.close()


def test_one_that_is_forgotten_is_ended(program: str) -> None:
    process = Process(program)
    pid = process.process.pid
    del process
    assert not runs(pid)


def test_none_outlives_its_parent(tmp_path: Path, program: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(f"""
        import time
        from gxpo.processes import Process
        process = Process({program!r})
        process.send("sleep")
        print(process.process.pid, flush=True)
        time.sleep(1000)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
    assert runs(child)
    parent.kill()
    parent.wait()
    for _ in range(200):
        if not runs(child):
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the program outlived its parent")
