"""Run an agent's command: a process tree of its own, its output bounded, all that it started ended with it."""

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

MOST = 1 << 20  # bytes of an output that are kept, from its end
PIECE = 1 << 16  # bytes read at once
LOOK = 0.5  # seconds after which a silent command is looked at
SOON = 0.002  # seconds between looks at one that has closed its outputs


class NotStarted(Exception):
    """The command can't be started; the message says why."""


@dataclass(eq=False)
class Tail:
    """The end of an output. is_whole: nothing of it was dropped."""

    text: bytearray = field(default_factory=bytearray)
    is_whole: bool = True

    def add(self, piece: bytes) -> None:
        self.text += piece
        if len(self.text) > 2 * MOST:
            self.cut()

    def cut(self) -> None:
        """Drop all but the last `MOST` bytes."""
        if len(self.text) > MOST:
            del self.text[:-MOST]
            self.is_whole = False


class Command:
    """A running command, the child of a guard that ends what the command leaves behind (`process_tree.guarded`).

    key  a text that only this command has in its environment: what lives on although its guard was killed is found by
         it (Linux)
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], key: str) -> None:
        self._key, self._ending = key, threading.Lock()
        report, theirs = os.pipe()
        guard = process_tree.guard_command(os.getpid(), theirs, list(words))
        try:
            self._process = subprocess.Popen(
                guard,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
                pass_fds=[theirs],
                start_new_session=True,
            )
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(theirs)
        self._report = os.fdopen(report, "rb")

    def end(self) -> None:
        """Kill the command with all its processes; does nothing once it has ended."""
        with self._ending:
            if self._process.returncode is None:  # else its id may be another process's
                process_tree.end_tree(self._process.pid)

    def run(self, given: bytes) -> tuple[int, Tail, Tail]:
        """Exit status, standard output and standard error after the end of the command and of all that it started.

        given  what it reads on standard input

        `NotStarted` where there is no such program.
        """
        out, err, report = Tail(), Tail(), Tail()
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with self._report, process.stdin, process.stdout, process.stderr, selectors.DefaultSelector() as waiting:
            for file, tail in ((process.stdout, out), (process.stderr, err), (self._report, report)):
                os.set_blocking(file.fileno(), False)
                waiting.register(file, selectors.EVENT_READ, tail)
            os.set_blocking(process.stdin.fileno(), False)
            waiting.register(process.stdin, selectors.EVENT_WRITE)
            rest = memoryview(given)
            while any(key.data is not None for key in waiting.get_map().values()):
                events = waiting.select(LOOK)
                if not events and self._has_ended():
                    break  # a process that escaped holds its output
                for key, _ in events:
                    if key.data is not None:
                        if not _read_some(key.fd, key.data):
                            waiting.unregister(key.fileobj)
                    elif not (rest := _write_some(key.fd, rest)):
                        waiting.unregister(process.stdin)
                        with contextlib.suppress(OSError):
                            process.stdin.close()
        code = self._wait()
        if report.text:
            raise NotStarted(os.strerror(int(report.text)))
        out.cut()
        err.cut()
        return code, out, err

    def _has_ended(self) -> bool:
        with self._ending:
            return self._process.poll() is not None

    def _wait(self) -> int:
        """Exit status of the guard, which is the command's; what lives on is ended."""
        while not self._has_ended():
            time.sleep(SOON)
        code, pid = self._process.returncode, self._process.pid
        if not sys.platform.startswith("linux"):  # where the guard knows of no orphans
            process_tree.end_group(pid)
        elif code < 0:  # the guard itself may have been killed
            process_tree.end_carriers(self._key)
        return code


def _read_some(descriptor: int, tail: Tail) -> bool:
    """Read what is there; False at the end."""
    try:
        piece = os.read(descriptor, PIECE)
    except BlockingIOError:
        return True
    tail.add(piece)
    return bool(piece)


def _write_some(descriptor: int, rest: memoryview) -> memoryview:
    """Write the beginning of `rest` and return what is still to be written; nothing where nobody reads it."""
    try:
        return rest[os.write(descriptor, rest[:PIECE]) :]
    except BlockingIOError:
        return rest
    except OSError:
        return rest[:0]
