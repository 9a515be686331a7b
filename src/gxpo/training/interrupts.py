"""Graceful interruption: stop and save after the current step on SIGINT (Ctrl-C, a notebook's stop) or SIGTERM.

A second SIGINT aborts at once.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gxpo.base import runtime


class Interrupts:
    """A context manager that catches signals, and a `watch` for `gxpo.train` that is True once one has come.

    notify   called with a line when it comes
    signals  those that are taken over inside the context; of a thread that is not the main one, none
    signal   the first that came, or None
    """

    def __init__(self, notify: Callable[[str], None], signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.notify, self.signals = notify, signals
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._interrupt) for number in self.signals}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __call__(self, row: dict[str, Any]) -> bool:
        return self.signal is not None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            # torchrun passes on a signal that its processes may have been sent already, so the second may be the first
            if number == signal.SIGINT and runtime.environment("WORLD_SIZE", 1) == 1:
                raise KeyboardInterrupt
            return
        self.signal = number
        self.notify("stopping after this step" + ("; once more to stop at once" if number == signal.SIGINT else ""))


class ServerInterrupts:
    """A context manager for a server: SIGINT, SIGTERM and SIGHUP end it after the calls under way, a second SIGINT in
    the middle of them. What is done outside `abortable`, such as writing records, is done whatever comes.

    is_due  a signal has come
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.notify, self.is_due, self._is_abortable = notify, False, False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> ServerInterrupts:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)
                if number is not None and not (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def abortable(self) -> Iterator[None]:
        """Context manager: a second SIGINT is a KeyboardInterrupt here."""
        self._is_abortable = True
        try:
            yield
        finally:
            self._is_abortable = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_due and number == signal.SIGINT and self._is_abortable:
            raise KeyboardInterrupt
        if not self.is_due:
            self.is_due = True
            self.notify("ending after the calls under way" + ("; once more at once" if number == signal.SIGINT else ""))


def for_python_script(notify: Callable[[str], None]) -> Interrupts:
    """Interrupts for a script with `gxpo.train`: SIGINT alone, and only in place of Python's own handler."""
    has_default_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return Interrupts(notify, (signal.SIGINT,) if has_default_handler else ())


def is_interactive() -> bool:
    """Return True in a notebook, IPython or the Python prompt."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None or hasattr(sys, "ps1") or bool(sys.flags.interactive)
