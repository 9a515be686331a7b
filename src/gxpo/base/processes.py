"""Worker processes that can be killed: the parent's side and the child's.

A program is a Python file with a function `serve(line)`: it receives items (`line.receive()`, pickled by the parent,
whom it trusts) and answers each of them in turn (`line.answer(text)`) in JSON, which the parent can read from a process
that runs a user's code. The file is loaded by path, in a new interpreter: it starts in milliseconds, shares no
threads with torch and never runs the user's script a second time.

Tried instead: Pebble 5.2 ends a worker at its item's deadline, but by spawn and forkserver alike every worker, also
each that replaces one, runs the user's script again; loky 3.7 does not run it, and leaves an item that is past its
deadline running.

Each answer carries a key that was drawn for the list, the item's number and the process's id. What comes from a forked
copy of the process, twice, out of turn, or from code that writes to every open file is therefore no answer: it costs
the item under way, and the process is replaced. Code that searches the interpreter for the key on purpose can answer
for items that came in the same list, as it can change any function of the process that it is part of.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from gxpo.base.library_variables import set_library_variables
from gxpo.base.process_tree import end_descendants, end_tree, guarded, is_running

LOADING = 120.0  # seconds a program may take to import what it needs
STUCK = 30.0  # seconds after which an unread message counts as the end of the process
ENDING = 1.0  # seconds that a program that has closed its line may go on, and so keep its own exit code
LARGEST = 1 << 27  # bytes of an answer; more is not one
PIECE = 1 << 16  # bytes read at once
SOON = 0.05  # seconds within which most answers come, so that nothing has to be looked up
STARVED = 20.0  # times its own limit that an item may wait for a processor
FROM_OUTSIDE = ("signal SIGKILL", "signal SIGTERM")  # by the kernel where memory is short, or by somebody

KEY = 16  # bytes
MESSAGE = struct.Struct(f"!Q{KEY}s")  # size, key
ANSWER = struct.Struct(f"!{KEY}sQQQ")  # key of the message, number of the item in it, process, size

T = TypeVar("T")


class Ended(Exception):
    """The worker process was ended before it answered; the message says why.

    kind  "timeout", or "died": it ended by itself, or wrote something that is no answer
    how   its exit code or signal in words, where it ended by itself
    """

    def __init__(self, kind: Literal["timeout", "died"], why: str, how: str = "") -> None:
        super().__init__(why)
        self.kind, self.how = kind, how

    @property
    def from_outside(self) -> bool:
        """True if a signal from outside ended it; the item under way may not be to blame."""
        return self.how in FROM_OUTSIDE


class Process:
    """A running worker process.

    It has a session of its own: Ctrl-C is the trainer's to handle. What the program starts is killed when it ends, on
    Linux also what has a session of its own. Its output goes to this process's standard error; it reads nothing; it
    leaves when this process is gone.
    """

    def __init__(self, program: str) -> None:
        if not hasattr(os, "fork"):
            from gxpo.base.errors import ConfigError

            raise ConfigError(
                "rewards, environments and comparisons run in processes of their own, which need Linux or macOS: on "
                "Windows use WSL (advantages, losses, the doctor and the adapters work without)"
            )
        # a private socket and not standard output, on which user code prints
        self._line, theirs = socket.socketpair()
        self._buffer = bytearray()
        self._key, self._number = b"", 0
        self._posted: set[bytes] = set()  # keys of items that are answered in any order
        self.worker: int | None = None  # the id that the program answers with; `process` is its guard
        start = f"import sys; sys.path[:] = {sys.path!r}; from gxpo.base.processes import attend; attend({program!r})"
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", start, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # user code's prints go to the error stream, since standard output is gxpo's results
                stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL,
                # a session of its own: Ctrl-C reaches the parent alone, which decides what ends
                start_new_session=True,
            )
        self.close = weakref.finalize(self, _end, self._line, self.process, os.getpid())

    def send(self, items: Sequence[Any]) -> None:
        """Send a list of items; each has to be answered before the next list is sent.

        OSError where the process is gone, or has said something since its last answer.
        """
        # bytes that came before a question are not its answer: the program wrote them on its own
        self._line.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            self._buffer += self._line.recv(PIECE) or b"\0"
        if self._buffer or self.process.poll() is not None:
            self.close()
            raise ConnectionResetError("the process is gone, or has written what nobody asked for")
        # a random key for each list: an answer from before, or forged by user code, has another one
        self._key, self._number = os.urandom(KEY), 0
        message = pickle.dumps(list(items))
        self._line.settimeout(STUCK)
        # a child that reads nothing would block the parent for ever
        self._line.sendall(MESSAGE.pack(len(message), self._key) + message)

    def receive(self, timeout: float, read: Callable[[Any], T]) -> T:
        """The answer to the next item, converted from JSON by `read`, which raises for a malformed one.

        `Ended` where none comes within `timeout` seconds. Time for which the program was ready to run and had no
        processor does not count where the system tells (Linux), so that a loaded machine changes no verdict.
        """
        # a wait may end early: the deadline moves by the time for which the program had no processor
        deadline = _Deadline(timeout, self.worker)
        try:
            while (text := self._next()) is None:
                remaining = deadline.seconds_left()
                self._line.settimeout(max(remaining, 0.0))
                try:
                    piece = self._line.recv(PIECE)
                except (TimeoutError, BlockingIOError):
                    # the socket's timeout is only a check: the deadline may have moved, as it does on a loaded machine
                    if remaining > 0:
                        continue
                    self.close()
                    raise Ended("timeout", f"took longer than {timeout:g} s; its process was killed") from None
                if not piece:
                    raise EOFError
                self._buffer += piece
            return read(json.loads(text, parse_float=_finite, parse_constant=_finite))
        except (EOFError, OSError) as error:
            # how the process ended is part of the reason: killed for memory, by a signal, or left by exit
            how = self.exit_code()
            raise Ended("died", f"its process died ({how})", how) from error
        except Ended:
            raise
        except Exception as error:  # a deep nesting of brackets is a RecursionError
            raise self._nonsense(error) from error

    def post(self, item: Any) -> bytes:
        """Send an item that the program answers whenever it is done with it (`Line.later`); gives its key.

        OSError where the process is gone. A process that is asked so is asked in no other way.
        """
        key, message = os.urandom(KEY), pickle.dumps([item])
        self._line.settimeout(STUCK)
        self._line.sendall(MESSAGE.pack(len(message), key) + message)
        self._posted.add(key)
        return key

    def answers(self, seconds: float) -> list[tuple[bytes, Any]]:
        """Answers to posted items, from JSON: those that are there, or the first that come within `seconds`.

        `Ended` where the process has ended, or has written something that is no answer.
        """
        arrivals: list[tuple[bytes, Any]] = []
        deadline = time.monotonic() + seconds
        try:
            while True:
                # once one answer is there the others are only taken along, without waiting
                self._line.settimeout(0.0 if arrivals else max(0.0, deadline - time.monotonic()))
                try:
                    piece = self._line.recv(PIECE)
                except (TimeoutError, BlockingIOError):
                    return arrivals
                if not piece:
                    raise EOFError
                self._buffer += piece
                while (answer := self._posted_answer()) is not None:
                    arrivals.append(answer)
        except (EOFError, OSError) as error:
            how = self.exit_code()
            raise Ended("died", f"its process died ({how})", how) from error
        except Exception as error:
            raise self._nonsense(error) from error

    def _posted_answer(self) -> tuple[bytes, Any] | None:
        """The next answer to a posted item, None where not all of it is there."""
        if len(self._buffer) < ANSWER.size:
            return None
        key, number, _, _ = ANSWER.unpack_from(self._buffer)
        # only an item that was posted has a key: anything else was written by user code
        if key not in self._posted:
            raise ValueError("it is not addressed as one")
        self._key, self._number = key, number
        text = self._next()
        if text is None:
            return None
        self._posted.discard(key)
        return key, json.loads(text, parse_float=_finite, parse_constant=_finite)

    def fileno(self) -> int:
        """File descriptor of the connection, for `select`."""
        return self._line.fileno()

    def _nonsense(self, error: Exception) -> Ended:
        self.close()
        why = " ".join(str(error).split())[:200]
        kind = type(error).__name__
        return Ended("died", f"its process wrote something that is no answer ({kind}: {why}), and was killed")

    def _next(self) -> bytes | None:
        """The text of the next answer, None where not all of it is there."""
        buffer = self._buffer
        # the first bytes suffice: what user code prints is found before a size is read from it
        if not self._key.startswith(bytes(buffer[:KEY])):
            raise ValueError("it is not addressed as one")
        if len(buffer) < ANSWER.size:
            return None
        _, number, pid, size = ANSWER.unpack_from(buffer)
        # a forked copy of the program answers with its own pid, and is refused
        if number != self._number or pid != (self.worker or pid):
            raise ValueError(f"item {number} of process {pid}, where item {self._number} of {self.worker} is due")
        # a size is what the child says: memory is allocated for no more than an answer may have
        if size > LARGEST:
            raise ValueError(f"{size} bytes, above {LARGEST}")
        end = ANSWER.size + size
        if len(buffer) < end:
            return None
        text = bytes(buffer[ANSWER.size : end])
        del buffer[:end]
        self._number, self.worker = number + 1, pid
        return text

    def exit_code(self) -> str:
        """Describe how the process ended; one that still runs after a moment is killed."""
        for seconds in (ENDING, STUCK):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
                break
            if self.worker is None or is_running(self.worker):
                break  # else its guard has still to say how it ended
        self.close()
        return in_words(self.process.wait())


def start_process(load: Callable[[], T]) -> T:
    """The process that `load` starts; once more if it was killed from outside while it loaded (an error's cause)."""
    try:
        return load()
    except Exception as error:
        cause = error.__cause__
        if not (isinstance(cause, OSError) or (isinstance(cause, Ended) and cause.from_outside)):
            raise
    return load()


def in_words(code: int) -> str:
    """Describe an exit code of `subprocess` in words."""
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"signal {-code}"


class _Deadline:
    """Deadline of an item: `seconds` in which process `pid` computed, slept or waited for something."""

    def __init__(self, seconds: float, pid: int | None) -> None:
        self.seconds, self.pid = seconds, pid
        self.begun, self.starved = time.monotonic(), math.nan

    def seconds_left(self) -> float:
        """Seconds until the next check; 0 or less: too late."""
        passed, soon = time.monotonic() - self.begun, min(SOON, self.seconds)
        if passed < soon:
            return soon - passed
        starved = _without_processor(self.pid)
        if math.isnan(self.starved):
            self.starved = starved
        return self.seconds + min(starved - self.starved, STARVED * self.seconds) - passed


def _without_processor(pid: int | None) -> float:
    """Seconds for which the process was ready to run without a processor, as Linux tells; 0 elsewhere."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def _finite(text: str) -> float:
    """A finite JSON number; ValueError for NaN, Infinity and numbers that are too large."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not a finite number")
    return value


def _end(line: socket.socket, process: subprocess.Popen[bytes], owner: int) -> None:
    line.close()
    if os.getpid() != owner:  # a forked copy of this process that ends leaves it alone
        return
    # the guard last: while it lives, orphans are given to it and are found below it
    end_descendants(process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDING)  # the guard waits for what was killed, and leaves
    end_tree(process.pid)
    process.wait()


# ---------------------------------------------------------------- the child's side
class Line:
    """The worker's end of the connection.

    Only the process in which it was made answers: a forked one has no line, and exits where it would
    answer.
    """

    def __init__(self, number: int) -> None:
        os.set_inheritable(number, False)  # what the program starts does not hold the line open
        self._socket = socket.socket(fileno=number)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._address = (b"", 0, self._pid)  # of the item under way: key, number, process
        os.register_at_fork(after_in_child=self._socket.close)

    def receive(self) -> Iterator[Any]:
        """Items of the next list, each to be answered before the next; EOFError if the parent has hung up."""
        size, key = MESSAGE.unpack(self._exactly(MESSAGE.size))
        items = pickle.loads(self._exactly(size))

        def each() -> Iterator[Any]:
            for number, item in enumerate(items):
                self._address = (key, number, self._pid)
                yield item

        return each()

    def answer(self, text: str) -> None:
        """Answer the current item, in JSON."""
        self.later()(text)

    def later(self) -> Callable[[str], None]:
        """A function that answers the current item, from any thread, when later ones are current."""
        address = self._address

        def answer(text: str) -> None:
            # a forked child that returns from user code would answer a second time
            if os.getpid() != self._pid:
                os._exit(0)
            payload = text.encode()
            with self._lock:
                self._socket.sendall(ANSWER.pack(*address, len(payload)) + payload)

        return answer

    def _exactly(self, size: int) -> bytearray:
        received = bytearray(size)
        view, n_received = memoryview(received), 0
        while n_received < size:
            n = self._socket.recv_into(view[n_received:])
            if n == 0:
                raise EOFError
            n_received += n
        return received


def attend(program: str) -> None:
    """Serve requests with `serve` of the program until the parent hangs up."""
    number, parent = int(sys.argv[1]), int(sys.argv[2])
    # before anything is imported, since threads do not survive the fork
    guarded(parent, number)
    set_library_variables()
    line = Line(number)
    spec = importlib.util.spec_from_file_location("gxpo_program", program)
    assert spec is not None and spec.loader is not None, program
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    # a parent that hangs up is the usual end
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        module.serve(line)
