"""Programs in processes of their own, which can be killed: the parent's side and the child's.

A program is a Python file with a function `serve(connection)`: it reads messages (`connection.recv_bytes()`, pickled by
the parent, whom it trusts) and answers in JSON, which the parent can read from a process that runs a user's code. The
file is loaded by path, in a new interpreter: it starts in milliseconds, shares no threads with torch and never runs the
user's script a second time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

LOADING = 120.0  # seconds a program may take to import what it needs
STUCK = 30  # whole seconds after which half a message counts as the end of the process
ENDING = 1.0  # seconds that a process whose line is closed may take to leave, and so to keep its own exit code
LARGEST = 1 << 27  # bytes of an answer; more is not one


class Process:
    """One running program. Whoever reads too long without an answer ends it with `close`.

    It has a session of its own: Ctrl-C is the trainer's to handle, and what the program starts is killed with it. Its
    output goes to this process's standard error; it reads nothing; it leaves when this process is gone.
    """

    def __init__(self, program: str) -> None:
        self.connection, theirs = Pipe()
        _limit_waits(self.connection)
        start = f"import sys; sys.path[:] = {sys.path!r}; from gxpo.processes import attend; attend({program!r})"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", start, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL,
                start_new_session=True,
            )
        self.close = weakref.finalize(self, _end, self.connection, self.process)

    def send(self, message: Any) -> None:
        """OSError where the process is gone."""
        self.connection.send_bytes(pickle.dumps(message))

    def receive(self, timeout: float) -> Any:
        """The next answer, None where none comes within `timeout` seconds; EOFError or OSError where there is no
        process that could give one."""
        if not self.connection.poll(timeout):
            return None
        try:
            return json.loads(self.connection.recv_bytes(LARGEST))
        except ValueError as error:
            raise EOFError("the process wrote something that is no answer") from error

    def exit_code(self) -> str:
        """How the process ended, in words; one that is not about to end is killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDING)
        self.close()
        code = self.process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _limit_waits(connection: Connection) -> None:
    """Let no write, and no read of what has begun to arrive, wait for ever on a process that is stopped."""
    limit = struct.pack("ll", STUCK, 0)
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def attend(program: str) -> None:
    """The child's side: run `serve` of the program until the parent hangs up."""
    line, parent = int(sys.argv[1]), int(sys.argv[2])
    _end_with(parent)
    os.set_inheritable(line, False)  # what the program starts does not hold the line open
    spec = importlib.util.spec_from_file_location("gxpo_program", program)
    assert spec is not None and spec.loader is not None, program
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        module.serve(Connection(line))


def _end_with(parent: int) -> None:
    """Leave when the parent is gone, even while the program hangs."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
