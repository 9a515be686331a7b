"""Worker pool for user reward functions: a crash or timeout costs one item only."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.base.processes import LOADING, STARVED, Ended, Process, loaded
from gxpo.base.usercode import one_line
from gxpo.environments.rewards.worker import Reply, reply_of

# ---------------------------------------------------------------- the pool
PROGRAM = str(Path(__file__).with_name("worker.py"))
CHUNK = 64  # items sent at once
OUT_OF_CPU = "signal SIGPROF"  # as `in_words` says it; see `gxpo.environments.rewards.worker.computing`

Call = tuple[int, bytes]  # (which function, pickled (args, keywords))


class _Worker(Process):
    """One process. `sources` as `gxpo.environments.rewards.worker.load` takes them, with "label" and "is_scorer"."""

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(PROGRAM)
        self.declared: list[tuple[str, ...] | None] = []  # parameter names, None for a task's scorer
        try:
            self.send(sources)
            for source in sources:
                status, value = self.receive(LOADING, _loaded)
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


def _loaded(answer: Any) -> tuple[str, Any]:
    """Validate a worker's reply about a function that it loads."""
    status, value = answer
    if status == "unusable" and isinstance(value, str):
        return status, value
    if status == "loaded" and (value is None or all(isinstance(name, str) for name in value)):
        return status, None if value is None else tuple(value)
    raise ValueError("neither loaded nor unusable")


class Workers:
    """Pool of `count` processes with the same functions; started when needed, replaced when an item breaks one.

    The first starts at once, so that a function that can't be loaded is a ConfigError before anything runs. An item
    whose process is killed from outside (memory, an operator) is run once more: a second time it is to blame.
    """

    def __init__(self, sources: Sequence[Mapping[str, Any]], *, timeout: float, count: int = 1) -> None:
        self.sources = [{**s, "seconds": timeout if s.get("computes") else 0.0} for s in sources]
        self.timeout = timeout
        first = self._started()
        self.declared = first.declared  # parameter names of each function, None for a task's scorer
        self._workers: list[_Worker | None] = [first, *[None] * (count - 1)]

    def run(self, calls: Sequence[Call]) -> list[Reply]:
        """Run the calls; a reply for each, in order: the worker's, or "timeout", "died" or "limit" with a message."""
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

    def _started(self) -> _Worker:
        return loaded(lambda: _Worker(self.sources))

    def _run_chunk(self, slot: int, calls: Sequence[Call]) -> list[Reply]:
        replies: list[Reply] = []
        fruitless, tried = 0, -1
        while len(replies) < len(calls):
            worker = self._workers[slot] or self._started()
            self._workers[slot] = None  # what is interrupted here is not used again
            try:
                worker.send(calls[len(replies) :])
            except OSError as error:  # it died between two batches: no item is to blame
                fruitless += 1
                if fruitless > 3:
                    raise GxpoError(f"reward workers die before they are used ({worker.exit_code()})") from error
                worker.close()
                continue
            try:
                while len(replies) < len(calls):
                    seconds = self.sources[calls[len(replies)][0]]["seconds"]
                    replies.append(worker.receive(STARVED * seconds or self.timeout, reply_of))
                self._workers[slot] = worker
            except Ended as end:
                if seconds and end.how == OUT_OF_CPU:
                    replies.append(("limit", f"computed for longer than {seconds:g} s; its process was killed"))
                elif end.from_outside and tried != len(replies):
                    tried = len(replies)
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
    """A function that other processes can import, called there: each call may compute for `seconds`.

    function   gives a number or named numbers;   label  what errors call it
    rehearsal  arguments of a call that imports what the function is slow to get, before any clock runs
    processes  they start with the first call, and share the calls

    A reply is ("ok", value), or a status of `rewards.worker` with a message: "limit" for a call that took longer.
    """

    function: Callable[..., Any]
    label: str
    rehearsal: tuple[Any, ...] | None = None
    seconds: float = 5.0
    processes: int = 1
    _workers: Workers | None = field(default=None, init=False, repr=False)

    def run(self, calls: Sequence[tuple[Any, ...]]) -> list[Reply]:
        """Replies to calls, each a tuple of arguments, in order."""
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
