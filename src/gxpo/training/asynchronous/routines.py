"""Cooperative routines: blocking functions that run one at a time, and services that answer their calls in batches.

A rollout is written as a function that waits for its samples. To sample many groups together each group's function runs
in a thread of its own; only one of these threads runs at any time, from one call for a service to its next. So what
they do has an order, and calls of many groups become one batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any


class Cancelled(BaseException):
    """Raised in a routine that is ended from outside; no part may catch it as an error of its own."""


@dataclass(eq=False)
class Call:
    """A routine's request to a service; `answer` or `error` once it is served."""

    service: str
    what: str
    arguments: tuple[Any, ...]
    owner: Any  # what the routine grows
    answer: Any = None
    error: BaseException | None = None


class Routine:
    """A function in a thread of its own that runs only inside `advance`, up to its next call for a service.

    owner  what it works for; calls carry it
    call   the call that it waits for, None before the first and after the last
    over   it has returned `result` or raised `error`
    """

    def __init__(self, owner: Any, work: Callable[[Routine], Any]) -> None:
        self.owner, self._work = owner, work
        self.call: Call | None = None
        self.over = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._cancelled = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def advance(self) -> None:
        """Run to the next call or the end; the call before is answered."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"rollout of {self.owner}", daemon=True)
            self._thread.start()
        self._go.release()
        self._stopped.acquire()

    def cancel(self) -> None:
        """End it where it stands: its `finally` blocks run, and further calls of theirs are refused."""
        self._cancelled = True
        if self._thread is None:
            self.over = True
        while not self.over:
            self.advance()

    def ask(self, service: str, what: str, *arguments: Any) -> Any:
        """In the routine's own thread: the answer of a service; its error is raised here."""
        if self._cancelled:
            raise Cancelled
        call = self.call = Call(service, what, arguments, self.owner)
        self._stopped.release()
        self._go.acquire()
        self.call = None
        if self._cancelled:
            raise Cancelled
        if call.error is not None:
            raise call.error
        return call.answer

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.result = self._work(self)
        except BaseException as error:
            self.error = error
        self.over = True
        self._stopped.release()


Service = Callable[[Sequence[Call]], None]  # answers these calls, all of them waiting at the same time


@dataclass(eq=False)
class Rounds:
    """Runs routines and serves what they call for.

    services  by name; each serves one batch at a time, of all calls for it that are waiting
    barrier   a batch is served only when every routine waits or is over, and nothing is being served: what is in a
              batch then depends on the routines alone. False: as soon as its service is free
    """

    services: Mapping[str, Service]
    barrier: bool
    routines: list[Routine] = field(default_factory=list)
    _ready: deque[Routine] = field(default_factory=deque, repr=False)
    _serving: dict[str, tuple[Future[None], list[Routine]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(max(1, len(self.services)), thread_name_prefix="service")

    def add(self, routine: Routine) -> None:
        """Begin a routine."""
        self.routines.append(routine)
        self._ready.append(routine)

    def round(self, timeout: float | None = None) -> list[Routine]:
        """Go on until something has been served or a routine is over; gives those that are over, which are removed.

        timeout  seconds to wait for services, None: as long as they take
        """
        while self._ready:
            self._ready.popleft().advance()
        over = [r for r in self.routines if r.over]
        self.routines = [r for r in self.routines if not r.over]
        self._submit()
        if not over and self._serving:
            wait([future for future, _ in self._serving.values()], timeout, return_when="FIRST_COMPLETED")
        self._collect()
        return over

    def _submit(self) -> None:
        if self.barrier and self._serving:
            return
        held = {r for _, served in self._serving.values() for r in served}
        waiting: dict[str, list[Routine]] = {}
        for routine in self.routines:
            if routine.call is not None and routine not in held:
                waiting.setdefault(routine.call.service, []).append(routine)
        for name, served in waiting.items():
            if name not in self._serving:
                calls = [r.call for r in served if r.call is not None]
                self._serving[name] = (self._pool.submit(_serve, self.services[name], calls), served)

    def _collect(self) -> None:
        for name, (future, served) in list(self._serving.items()):
            if future.done():
                del self._serving[name]
                future.result()
                self._ready.extend(served)

    def close(self) -> None:
        """Wait for what is being served, then end all routines."""
        wait([future for future, _ in self._serving.values()])
        self._serving.clear()
        for routine in self.routines:
            routine.cancel()
        self.routines.clear()
        self._ready.clear()
        self._pool.shutdown()


def _serve(service: Service, calls: Sequence[Call]) -> None:
    """A batch that fails raises its error in every routine that waits for it."""
    try:
        service(calls)
    except Exception as error:
        for call in calls:
            call.error = error
