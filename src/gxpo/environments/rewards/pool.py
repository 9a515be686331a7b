"""Worker pools for user reward functions and bounded calls: a crash or timeout costs one item only."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.base.processes import LOADING, STARVED, Ended, Process, start_process
from gxpo.base.usercode import one_line
from gxpo.environments.rewards.worker import Reply, reply_of

# ---------------------------------------------------------------- the pool
PROGRAM = str(Path(__file__).with_name("worker.py"))
CHUNK = 64  # items sent at once
OUT_OF_CPU = "signal SIGPROF"  # in the words of `in_words`; see `gxpo.environments.rewards.worker.processor_time_limit`

Call = tuple[int, bytes]  # (which function, pickled (args, keywords))


class _Worker(Process):
    """Worker process. `sources` as `gxpo.environments.rewards.worker.load` takes them, with "label" and "is_scorer"."""

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(PROGRAM)
        self.declared: list[tuple[str, ...] | None] = []  # parameter names, None for a task's scorer
        # In the order of the sources: one that hangs or dies while it is loaded is named.
        try:
            self.send(sources)
            for source in sources:
                status, value = self.receive(LOADING, _loading_reply)
                if status == "unusable":
                    raise ConfigError(f"reward {source['label']}: {one_line(value)}")
                self.declared.append(value)
        except (Ended, OSError) as error:
            self.close()
            label = sources[len(self.declared)]["label"]
            raise ConfigError(f"reward {label}: loading it: {error}") from error
        except BaseException:
            self.close()
            raise


def _loading_reply(answer: Any) -> tuple[str, Any]:
    """Validate a worker's reply to a function that it was to load."""
    status, value = answer
    if status == "unusable" and isinstance(value, str):
        return status, value
    if status == "loaded" and (value is None or all(isinstance(name, str) for name in value)):
        return status, None if value is None else tuple(value)
    raise ValueError("neither loaded nor unusable")


class Workers:
    """Pool of `count` processes with the same functions; started when needed, replaced when an item breaks one.

    The first starts at once, so that a function that can't be loaded is a ConfigError before anything runs. An item
    whose process is killed from outside (memory, an operator) is run once more; the second time it has failed.
    """

    def __init__(self, sources: Sequence[Mapping[str, Any]], *, timeout: float, count: int = 1) -> None:
        self.sources = [{**s, "seconds": timeout if s.get("computes") else 0.0} for s in sources]
        self.timeout = timeout
        first = self._start_worker()
        self.declared = first.declared  # parameter names of each function, None for a task's scorer
        self._workers: list[_Worker | None] = [first, *[None] * (count - 1)]

    def run(self, calls: Sequence[Call]) -> list[Reply]:
        """Run the calls; a reply for each, in order: the worker's, or "timeout", "died" or "limit" with a message."""
        replies: list[Reply] = [("died", "never run")] * len(calls)
        chunks = deque(range(0, len(calls), CHUNK))

        # Workers take chunks from one queue, so that a slow item holds up its own worker alone.
        def work(slot: int) -> None:
            while chunks:
                try:
                    begin = chunks.popleft()
                except IndexError:
                    return
                for index, reply in enumerate(self._run_chunk(slot, calls[begin : begin + CHUNK]), begin):
                    replies[index] = reply

        if len(self._workers) == 1:
            work(0)
        else:
            with ThreadPoolExecutor(len(self._workers)) as threads:
                for future in [threads.submit(work, slot) for slot in range(len(self._workers))]:
                    future.result()
        return replies

    def _start_worker(self) -> _Worker:
        """Start a worker that has loaded all functions."""
        return start_process(lambda: _Worker(self.sources))

    def _run_chunk(self, slot: int, calls: Sequence[Call]) -> list[Reply]:
        """Run a chunk of calls on the worker of a slot, on a new one after each item that ends it."""
        replies: list[Reply] = []
        failed_sends, retried_item = 0, -1
        while len(replies) < len(calls):
            worker = self._workers[slot] or self._start_worker()
            self._workers[slot] = None  # a worker that is interrupted here is not used again
            try:
                worker.send(calls[len(replies) :])
            except OSError as error:  # it died between two batches: no item is to blame
                failed_sends += 1
                if failed_sends > 3:
                    raise GxpoError(f"reward workers die before they are used ({worker.exit_code()})") from error
                worker.close()
                continue
            try:
                while len(replies) < len(calls):
                    seconds = self.sources[calls[len(replies)][0]]["seconds"]
                    replies.append(worker.receive(STARVED * seconds or self.timeout, reply_of))
                self._workers[slot] = worker
            # The item that was running is to blame, unless its process was killed from outside for the first time.
            except Ended as end:
                if seconds and end.how == OUT_OF_CPU:
                    replies.append(("limit", f"computed for longer than {seconds:g} s; its process was killed"))
                # Killed from outside (for memory, by an operator), it may be another program's fault: tried once more.
                elif end.from_outside and retried_item != len(replies):
                    retried_item = len(replies)
                else:
                    replies.append((end.kind, str(end)))
        return replies

    def close(self) -> None:
        """End the processes; they start again if needed."""
        for process in self._workers:
            if process is not None:
                process.close()
        self._workers = [None] * len(self._workers)


# ---------------------------------------------------------------- calls with a limit of work
@dataclass(eq=False)
class Bounded:
    """Function called in worker processes, where each call may compute for `seconds`.

    function   importable by other processes; returns a number or named numbers
    label      its name in errors
    rehearsal  arguments of a call that does its slow imports, before any clock runs
    processes  number of workers; they start with the first call, and share the calls

    A reply is ("ok", value), or a status of `rewards.worker` with a message: "limit" for a call that took longer.
    """

    function: Callable[..., Any]
    label: str
    rehearsal: tuple[Any, ...] | None = None
    seconds: float = 5.0
    processes: int = 1
    _workers: Workers | None = field(default=None, init=False, repr=False)

    def run(self, calls: Sequence[tuple[Any, ...]]) -> list[Reply]:
        """Run calls, each a tuple of arguments; replies in order."""
        if not calls:
            return []
        if self._workers is None:
            rehearsal = None if self.rehearsal is None else pickle.dumps((self.rehearsal, {}))
            source = {"pickle": pickle.dumps(self.function), "label": self.label, "is_scorer": True,
                      "rehearsal": rehearsal, "computes": True}  # fmt: skip
            self._workers = Workers([source], timeout=self.seconds, count=self.processes)
        return self._workers.run([(0, pickle.dumps((call, {}))) for call in calls])

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None
