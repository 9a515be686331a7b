"""Processes that run other people's scoring functions: whatever an item does, it costs itself alone."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gxpo.errors import ConfigError, GxpoError
from gxpo.rewards.worker import Reply

PROGRAM = str(Path(__file__).with_name("worker.py"))
LOADING = 120.0  # seconds a worker may take to import what its functions need
CHUNK = 64  # items sent at once

Call = tuple[int, bytes]  # (which function, pickled (args, keywords))


class _Worker:
    """One process. `sources` as `gxpo.rewards.worker.load` takes them, with "label" and "is_scorer"."""

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        self.connection, theirs = Pipe()
        start = f"import sys; sys.path[:] = {sys.path!r}; import runpy; runpy.run_path({PROGRAM!r}, {{}}, '__main__')"
        with theirs:
            # a session of its own: Ctrl-C is the trainer's to handle, and what a reward starts is killed with it
            self.process = subprocess.Popen(
                [sys.executable, "-c", start, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL,
                start_new_session=True,
            )
        self.close = weakref.finalize(self, _end, self.connection, self.process)
        self.declared = self._load(sources)

    def _load(self, sources: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...] | None]:
        declared = []
        try:
            self.connection.send_bytes(pickle.dumps(list(sources)))
            for source in sources:
                reply = self.receive(LOADING)
                if reply is None:
                    raise ConfigError(f"reward {source['label']}: loading it took longer than {LOADING:g} s")
                status, _, value = reply
                if status == "unusable":
                    raise ConfigError(f"reward {source['label']}: {value}")
                declared.append(None if value is None else tuple(value))
        except (EOFError, OSError) as error:
            label = sources[len(declared)]["label"]
            raise ConfigError(f"reward {label}: the process that loads it died ({self.exit_code()})") from error
        except BaseException:
            self.close()
            raise
        return declared

    def receive(self, timeout: float) -> Any:
        """The next reply, None where none comes within `timeout` seconds; EOFError where the process is gone."""
        if not self.connection.poll(timeout):
            return None
        return json.loads(self.connection.recv_bytes())

    def exit_code(self) -> str:
        self.close()
        code = self.process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.05)  # a process that died by itself keeps its own exit code
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Workers:
    """`count` processes that hold the same functions; started when needed, replaced when an item breaks one.

    The first starts at once, so that a function that can't be loaded is a ConfigError before anything runs.
    """

    def __init__(self, sources: Sequence[Mapping[str, Any]], *, timeout: float, count: int = 1) -> None:
        self.sources = list(sources)
        self.timeout = timeout
        first = _Worker(self.sources)
        self.declared = first.declared  # parameter names of each function, None for a task's scorer
        self._workers: list[_Worker | None] = [first, *[None] * (count - 1)]

    def run(self, calls: Sequence[Call]) -> list[Reply]:
        """What came of each call, in order: a reply of the worker, "timeout" or "died" with a message."""
        replies: list[Reply] = [("died", "never run")] * len(calls)
        chunks = deque(range(0, len(calls), CHUNK))

        def work(slot: int) -> None:
            while chunks:
                try:
                    begin = chunks.popleft()
                except IndexError:
                    return
                for at, reply in enumerate(self._run_chunk(slot, calls[begin : begin + CHUNK]), begin):
                    replies[at] = reply

        if len(self._workers) == 1:
            work(0)
        else:
            with ThreadPoolExecutor(len(self._workers)) as threads:
                for done in [threads.submit(work, slot) for slot in range(len(self._workers))]:
                    done.result()
        return replies

    def _run_chunk(self, slot: int, calls: Sequence[Call]) -> list[Reply]:
        replies: list[Reply] = []
        fruitless = 0
        while len(replies) < len(calls):
            worker = self._workers[slot] or _Worker(self.sources)
            self._workers[slot] = None  # what is interrupted here is not used again
            try:
                worker.connection.send_bytes(pickle.dumps(list(calls[len(replies) :])))
            except OSError as error:  # it died between two batches: no item is to blame
                fruitless += 1
                if fruitless > 3:
                    raise GxpoError(f"reward workers die before they are used ({worker.exit_code()})") from error
                worker.close()
                continue
            try:
                while len(replies) < len(calls):
                    reply = worker.receive(self.timeout)
                    if reply is None:
                        worker.close()
                        replies.append(("timeout", f"took longer than {self.timeout:g} s; its worker was killed"))
                        break
                    replies.append((reply[0], reply[1]))
                else:
                    self._workers[slot] = worker
            except (EOFError, OSError):
                replies.append(("died", f"its worker died ({worker.exit_code()})"))
        return replies

    def close(self) -> None:
        """End the processes; they start again if needed."""
        for process in self._workers:
            if process is not None:
                process.close()
        self._workers = [None] * len(self._workers)
