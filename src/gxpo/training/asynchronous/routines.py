"""Cooperative routines: blocking functions that run one at a time, and services that answer their calls in batches.

A rollout is written as a function that waits for its samples. To sample many groups together, each group's function
runs in its own thread; only one of these threads runs at any time, from one service call to its next. So the order of
their work is fixed, and calls of many groups become one batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any


class Cancelled(BaseException):
    """Ends a routine from outside; a BaseException, so that no part catches it as an error."""


@dataclass(eq=False)
class Call:
    """A routine's request to a service; `answer` or `error` is set once it is served."""

    service: str
    operation: str
    arguments: tuple[Any, ...]
    owner: Any  # the group that the routine samples
    answer: Any = None
    error: BaseException | None = None


class Routine:
    """A function in its own thread that runs only inside `advance`, up to its next service call.

    owner    the group that it samples; its calls carry it
    call     the call that it waits for, None before the first and after the last
    is_over  True once it has returned `result` or raised `error`
    """

    def __init__(self, owner: Any, work: Callable[[Routine], Any]) -> None:
        self.owner, self._work = owner, work
        self.call: Call | None = None
        self.is_over = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._is_cancelled = False
        self._may_run, self._has_paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def advance(self) -> None:
        """Run to the next call or the end; the call before must be answered."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"rollout of {self.owner}", daemon=True)
            self._thread.start()
        self._may_run.release()
        self._has_paused.acquire()

    def cancel(self) -> None:
        """End the function at its current call; its `finally` blocks run, and their own calls raise `Cancelled`."""
        self._is_cancelled = True
        if self._thread is None:
            self.is_over = True
        while not self.is_over:
            self.advance()

    def ask(self, service: str, operation: str, *arguments: Any) -> Any:
        """Return the answer of a service, or raise its error; called in the routine's own thread."""
        if self._is_cancelled:
            raise Cancelled
        # Hand control back to `advance`, and wait until it is called again: two semaphores, so one side runs at a time.
        call = self.call = Call(service, operation, arguments, self.owner)
        self._has_paused.release()
        self._may_run.acquire()
        self.call = None
        if self._is_cancelled:
            raise Cancelled
        if call.error is not None:
            raise call.error
        return call.answer

    def _run(self) -> None:
        self._may_run.acquire()
        try:
            self.result = self._work(self)
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._has_paused.release()


Service = Callable[[Sequence[Call]], None]  # answers a batch of calls in place


@dataclass(eq=False)
class Rounds:
    """Scheduler that runs routines and serves their calls in batches.

    services  by name; each serves one batch at a time, made of all calls that wait for it
    barrier   True: serve a batch only when every routine waits or is over and no service is busy, so that its content
              depends on the routines alone. False: serve as soon as the service is free
    """

    services: Mapping[str, Service]
    barrier: bool
    routines: list[Routine] = field(default_factory=list)
    _ready: deque[Routine] = field(default_factory=deque, repr=False)
    _serving: dict[str, tuple[Future[None], list[Routine]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(max(1, len(self.services)), thread_name_prefix="service")

    def add(self, routine: Routine) -> None:
        """Add a routine, to be started in the next round."""
        self.routines.append(routine)
        self._ready.append(routine)

    def run_round(self, timeout: float | None = None) -> list[Routine]:
        """Run until a batch has been served or a routine is over; remove and return the routines that are over.

        timeout  seconds to wait for services; None waits as long as they take
        """
        # One routine after the other, in the order in which they became ready: their side effects have a fixed order.
        while self._ready:
            self._ready.popleft().advance()
        finished_routines = [r for r in self.routines if r.is_over]
        self.routines = [r for r in self.routines if not r.is_over]
        self._submit()
        # A routine that ended makes room for another, so it is returned before any service is waited for.
        if not finished_routines and self._serving:
            wait([future for future, _ in self._serving.values()], timeout, return_when="FIRST_COMPLETED")
        self._collect()
        return finished_routines

    def _submit(self) -> None:
        """Start a batch for each free service that routines wait for."""
        if self.barrier and self._serving:
            return
        in_service = {r for _, batch in self._serving.values() for r in batch}
        routines_by_service: dict[str, list[Routine]] = {}
        for routine in self.routines:
            if routine.call is not None and routine not in in_service:
                routines_by_service.setdefault(routine.call.service, []).append(routine)
        for name, batch in routines_by_service.items():
            if name not in self._serving:
                calls = [r.call for r in batch if r.call is not None]
                self._serving[name] = (self._pool.submit(_serve_batch, self.services[name], calls), batch)

    def _collect(self) -> None:
        """Make the routines of served batches ready to go on."""
        for name, (future, batch) in list(self._serving.items()):
            if future.done():
                del self._serving[name]
                # Errors of the service are in its calls; this raises those of gxpo itself.
                future.result()
                self._ready.extend(batch)

    def close(self) -> None:
        """Wait for the services, then cancel all routines."""
        # A service may still write into its calls, so it ends before their routines do.
        wait([future for future, _ in self._serving.values()])
        self._serving.clear()
        for routine in self.routines:
            routine.cancel()
        self.routines.clear()
        self._ready.clear()
        self._pool.shutdown()


def _serve_batch(service: Service, calls: Sequence[Call]) -> None:
    """Serve a batch; if the service raises, every call of the batch gets the error."""
    try:
        service(calls)
    except Exception as error:
        for call in calls:
            call.error = error
