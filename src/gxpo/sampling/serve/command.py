"""Run an agent's command as a process tree: bounded output, and every process ended with it."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gxpo.base import process_tree

MOST = 1 << 20  # bytes at the end of an output that are kept
PIECE = 1 << 16  # bytes read at once
LOOK = 0.5  # seconds without output before the command's state is polled
SOON = 0.002  # seconds between polls of a command that has closed its outputs


class NotStarted(Exception):
    """The command can't be started; the message is the system's reason."""


@dataclass(eq=False)
class Tail:
    """Tail of an output; `is_whole`: nothing was dropped from its beginning."""

    text: bytearray = field(default_factory=bytearray)
    is_whole: bool = True

    def add(self, piece: bytes) -> None:
        self.text += piece
        if len(self.text) > 2 * MOST:
            self.truncate()

    def truncate(self) -> None:
        """Drop all but the last `MOST` bytes."""
        if len(self.text) > MOST:
            del self.text[:-MOST]
            self.is_whole = False


class Command:
    """A running command, the child of a guard that ends what the command leaves behind (`process_tree.guarded`).

    key  text that only this command has in its environment, by which processes are found that survive a killed guard
         (Linux)
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], key: str) -> None:
        self._key, self._end_lock = key, threading.Lock()
        report, child_end = os.pipe()
        guard = process_tree.guard_command(os.getpid(), child_end, list(words))
        try:
            self._process = subprocess.Popen(
                guard,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
                pass_fds=[child_end],
                start_new_session=True,
            )
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(child_end)
        self._report = os.fdopen(report, "rb")

    def end(self) -> None:
        """Kill the command with all its processes; do nothing if it has ended."""
        with self._end_lock:
            if self._process.returncode is None:  # after that the system may give its id to another process
                process_tree.end_tree(self._process.pid)

    def run(self, standard_input: bytes) -> tuple[int, Tail, Tail]:
        """Run to the end of the command and of all that it started; return exit status, output and error output.

        `NotStarted` if there is no such program.
        """
        out, err, report = Tail(), Tail(), Tail()
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with self._report, process.stdin, process.stdout, process.stderr, selectors.DefaultSelector() as selector:
            # Nothing may block: a command that fills one pipe while we wait at another would hang both sides.
            for file, tail in ((process.stdout, out), (process.stderr, err), (self._report, report)):
                os.set_blocking(file.fileno(), False)
                selector.register(file, selectors.EVENT_READ, tail)
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            unwritten = memoryview(standard_input)
            while any(key.data is not None for key in selector.get_map().values()):
                events = selector.select(LOOK)
                # A process that escaped may hold the output open for ever, so its end is not waited for.
                if not events and self._has_ended():
                    break
                for key, _ in events:
                    if key.data is not None:
                        if not _read_some(key.fd, key.data):
                            selector.unregister(key.fileobj)
                    elif not (unwritten := _write_some(key.fd, unwritten)):
                        selector.unregister(process.stdin)
                        with contextlib.suppress(OSError):
                            process.stdin.close()
        # The guard reports a program that can't be started on a pipe of its own, apart from the program's output.
        code = self._wait()
        if report.text:
            raise NotStarted(os.strerror(int(report.text)))
        out.truncate()
        err.truncate()
        return code, out, err

    def _has_ended(self) -> bool:
        """Poll the guard, never at the same time as `end` kills it by its id."""
        with self._end_lock:
            return self._process.poll() is not None

    def _wait(self) -> int:
        """Wait for the guard, whose exit status is the command's, and end surviving processes."""
        while not self._has_ended():
            time.sleep(SOON)
        code, pid = self._process.returncode, self._process.pid
        if not sys.platform.startswith("linux"):  # only on Linux does the guard learn of orphaned processes
            process_tree.end_group(pid)
        elif code < 0:  # the guard itself may have been killed
            process_tree.end_carriers(self._key)
        return code


def _read_some(descriptor: int, tail: Tail) -> bool:
    """Read available output; return False at its end."""
    try:
        piece = os.read(descriptor, PIECE)
    except BlockingIOError:
        return True
    tail.add(piece)
    return bool(piece)


def _write_some(descriptor: int, unwritten: memoryview) -> memoryview:
    """Write the beginning of `rest` and return the remainder; nothing remains if the reader is gone."""
    try:
        return unwritten[os.write(descriptor, unwritten[:PIECE]) :]
    except BlockingIOError:
        return unwritten
    except OSError:
        return unwritten[:0]
