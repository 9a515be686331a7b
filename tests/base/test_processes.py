"""gxpo.base.processes: a program that hangs, dies or talks nonsense is noticed, ended and described."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gxpo.base import processes
from gxpo.base.process_tree import is_running
from gxpo.base.processes import Ended, Process

PROGRAM = """
import ctypes, json, multiprocessing, os, signal, struct, sys, threading, time

def serve(line):
    while True:
        for what in line.receive():
            line.answer(did(line, what))

def did(line, what):
    if type(what) is not str:
        return json.dumps(what)
    number = line._socket.fileno()
    if what == "die":
        os._exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    if what == "raise":
        raise ValueError("on purpose")
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "print":
        threads = [threading.Thread(target=print, args=("a program may print",)) for _ in range(8)]
        for thread in threads:
            thread.start()
    if what == "about":
        names = [name for name in ("torch", "numpy") if name in sys.modules]
        return json.dumps([os.getpid(), os.getsid(0), sys.stdin.read(), os.get_inheritable(number), names])
    # what a careless program does
    if what == "fork":
        os.fork()
    if what == "fork in C":
        ctypes.CDLL(None).fork()
    if what == "fork and leave":
        if os.fork():
            os._exit(0)
        time.sleep(1000)
    if what == "pool":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return json.dumps(pool.map(abs, [-1, -2]))
    if what == "write":
        os.write(number, b"to every open file")
    if what == "close":
        os.close(number)
    # what one does that knows the key
    own, size = struct.pack("!16sQQ", *line._address), struct.Struct("!Q")
    later = struct.pack("!16sQQ", line._address[0], line._address[1] + 1, os.getpid())
    other = struct.pack("!16sQQ", *line._address[:2], 1)
    frames = {
        "half": own + size.pack(3) + b"1", "half and more": own[:9], "too long": own + size.pack(1 << 62),
        "later": later + size.pack(1) + b"1", "another process": other + size.pack(1) + b"1",
    }
    if what in frames:
        os.write(number, frames[what])
    if what == "half":
        time.sleep(1000)
    if what == "twice":
        line.answer('"twice"')
    if what == "late":
        threading.Timer(0.01, os.write, (number, b"late")).start()
    # what is no JSON, or too much of it
    texts = {"nan": "NaN", "inf": "[1e999]", "deep": "[" * 100_000, "digits": "9" * 5000, "bytes": "{", "empty": ""}
    return texts.get(what, json.dumps(what))
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


def answer(process: Process, timeout: float = 60.0) -> Any:
    return process.receive(timeout, lambda value: value)


def test_messages_go_in_and_answers_come_out(running: Process) -> None:
    messages = [{"a": [1, None, "\ud800"]}, "x" * 1_000_000, [1.5]]
    for batch in (messages, messages[:1]):
        running.send(batch)
        assert [answer(running) for _ in batch] == batch


def test_it_stands_apart(running: Process) -> None:
    running.send(["about", "print"])
    assert answer(running) == [running.worker, running.process.pid, "", False, []]
    assert answer(running) == "print"


@pytest.mark.parametrize(
    ("what", "code"),
    [("die", "exit code 3"), ("kill", "signal SIGKILL"), ("raise", "exit code 1"), ("fork and leave", "exit code 0")],
)
def test_one_that_ends_is_described(running: Process, what: str, code: str) -> None:
    running.send([what])
    with pytest.raises(Ended, match=f"its process died .{code}.") as caught:
        answer(running)
    assert (caught.value.kind, caught.value.how, running.exit_code()) == ("died", code, code)
    with pytest.raises(OSError):
        running.send(["more"])


def test_one_that_hangs_is_ended(running: Process) -> None:
    running.send(["sleep"])
    with pytest.raises(Ended, match=r"took longer than 0.05 s; its process was killed") as caught:
        answer(running, 0.05)
    assert caught.value.kind == "timeout" and not is_running(running.process.pid)


# ---------------------------------------------------------------- answers of nobody who was asked
@pytest.mark.parametrize("what", ["fork", "fork in C"])
def test_a_forked_copy_answers_nothing(running: Process, what: str) -> None:
    batch = [x for i in range(20) for x in (what, i)]
    running.send(batch)
    assert [answer(running) for _ in batch] == batch


def test_a_pool_by_fork_works(running: Process) -> None:
    running.send(["pool", "pool"])
    assert [answer(running), answer(running)] == [[1, 2]] * 2


@pytest.mark.parametrize(
    "what",
    [
        *("write", "close", "half and more", "too long", "later", "another process"),
        *("nan", "inf", "deep", "digits", "bytes", "empty"),
    ],
)
def test_what_is_no_answer_costs_the_item_under_way(running: Process, what: str) -> None:
    running.send(["first", what, "last"])
    assert answer(running) == "first"
    with pytest.raises(Ended) as caught:
        answer(running)
    assert caught.value.kind == "died" and not is_running(running.process.pid)
    text = str(caught.value)
    assert len(text) < 400 and "\n" not in text and ("no answer" in text or what == "close")


def test_a_second_answer_is_not_the_next_items(running: Process) -> None:
    running.send(["twice", "next"])
    assert answer(running) == "twice"
    with pytest.raises(Ended, match=r"item 0 of process .*, where item 1 of"):
        answer(running)


def test_late_output_is_no_answer_to_the_next_request(running: Process) -> None:
    running.send(["late"])
    assert answer(running) == "late"
    for _ in range(200):
        try:
            running.send(["next"])
        except OSError:
            return
        assert answer(running) == "next"  # it was not there yet
        time.sleep(0.05)
    pytest.fail("nobody noticed")


def test_what_reads_an_answer_decides_what_is_one(running: Process) -> None:
    running.send(["text"])
    with pytest.raises(Ended, match=r"no answer .ValueError: could not convert.*, and was killed"):
        running.receive(60, float)


@pytest.mark.slow
def test_half_answers_and_unread_messages_time_out(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STUCK", 0.5)
    half, stopped = Process(program), Process(program)
    half.send(["half"])
    with pytest.raises(Ended, match=r"took longer than 0.5 s"):
        answer(half, 0.5)
    stopped.send(["stop"])
    with pytest.raises(OSError):
        stopped.send(["x" * 10_000_000])
    stopped.close()


def test_time_without_a_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, starved = 100.0, 7.0
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(processes, "_without_processor", lambda pid: starved)
    deadline = processes._Deadline(5.0, 1)
    now = 101.0
    assert deadline.seconds_left() == 4.0  # of 5 s
    now, starved = 106.0, 10.0
    assert deadline.seconds_left() == 2.0  # 6 s later, 3 of which it had no processor
    starved = 7.0 + 1000.0
    assert deadline.seconds_left() == 5.0 + 100.0 - 6.0  # but at most 20 times as long


@pytest.mark.skipif(not Path("/proc/self/schedstat").is_file(), reason="the system does not tell")
def test_the_system_tells_who_had_no_processor() -> None:
    def told() -> float:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9

    assert told() <= processes._without_processor(os.getpid()) * (1 + 1e-12) and processes._without_processor(0) == 0.0


# ---------------------------------------------------------------- life and death
def test_one_that_is_forgotten_is_ended(program: str) -> None:
    process = Process(program)
    pid = process.process.pid
    del process
    assert not is_running(pid)
