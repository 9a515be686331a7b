"""Runs as jobs: so many at a time, each in a process of its own with its threads pinned, resumable at any instant.

A job is a run directory and its keys. A worker process trains one after the other, dies with this process, and is
replaced where it dies; since a run goes on from its checkpoint to the bit, nothing has to be saved on the way out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar

from gxpo.base.processes import Ended, Process
from gxpo.compare import worker

LONGEST = 30 * 86400.0  # seconds of one run
TAIL = 1 << 15  # bytes, more than two lines of metrics
ATTEMPTS = 2  # of a run whose process dies
STOPPED = "not finished"  # how the trouble of a run begins that the same command takes up again

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Job:
    """A run to make.

    path  of its directory
    keys  all of its configuration
    keep  whether checkpoints, rollouts and report stay
    """

    path: Path
    keys: Mapping[str, Any]
    keep: bool = True

    @property
    def done(self) -> bool:
        return (self.path / worker.DONE).is_file()

    @property
    def trouble(self) -> str:
        """Why it ended before its budget; empty where it did not, or is not done."""
        return str(json.loads((self.path / worker.DONE).read_text())["trouble"]) if self.done else ""

    def progress(self) -> dict[str, Any]:
        """The newest line of its metrics; empty before the first."""
        try:
            with (self.path / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
                lines = file.read().split(b"\n")
            return json.loads(lines[-2])  # what follows the last line end is not whole
        except (OSError, IndexError, json.JSONDecodeError):
            return {}


class Runner(Protocol):
    """Runs jobs and yields (job, trouble) as they end, those that are done first. A trouble that begins with `STOPPED`
    is that of a run which the same command takes up again."""

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, str]]: ...


def processors() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Local:
    """Worker processes on this machine.

    workers  how many at a time; None: one for every `threads` cores
    threads  of each; a run has the same bits again only with as many
    """

    def __init__(self, workers: int | None = None, threads: int = 1) -> None:
        self.threads = threads
        self.workers = workers or max(1, processors() // threads)
        self._lock = Lock()
        self._idle: list[Process] = []
        self._alive: set[Process] = set()
        self._stopped = False

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, str]]:
        yield from ((job, job.trouble) for job in jobs if job.done)
        yield from self._each(lambda job: (job, self._train(job)), [job for job in jobs if not job.done])

    def probe(self, keys: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """What two steps of each configuration cost (`gxpo.training.probe`). The first goes alone: it may have to make
        the files that the others read."""
        found: dict[int, dict[str, Any]] = {}
        for some in (list(enumerate(keys))[:1], list(enumerate(keys))[1:]):
            ask = lambda pair: (pair[0], self._ask({"probe": True, "keys": dict(pair[1])}, dict))  # noqa: E731
            found |= dict(self._each(ask, some))
        return [found[i] for i in range(len(keys))]

    def _each(self, work: Callable[[T], U], items: Sequence[T]) -> Iterator[U]:
        """The results as they come. However it ends, no process of it goes on."""
        if not items:
            return
        pool = ThreadPoolExecutor(min(self.workers, len(items)))
        try:
            for task in as_completed([pool.submit(work, item) for item in items]):
                yield task.result()
        except BaseException:
            self._stopped = True
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if self._stopped:
                self.close()

    def _train(self, job: Job) -> str:
        asked = {"path": str(job.path), "keys": dict(job.keys), "keep": job.keep}
        for attempt in range(ATTEMPTS):
            try:
                return str(self._ask(asked, dict)["trouble"])
            except (Ended, OSError) as error:
                if self._stopped:
                    return STOPPED
                if attempt + 1 == ATTEMPTS:
                    return f"{STOPPED}: {error}"
        raise AssertionError("unreachable")

    def _ask(self, item: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """The answer of an idle process, or of a new one. `Ended` or OSError where it dies; then it is replaced."""
        with self._lock:
            if self._stopped:
                raise Ended("died", "stopped")
            process = self._idle.pop() if self._idle else Process(str(Path(worker.__file__)))
            self._alive.add(process)
        try:
            process.send([{**item, "threads": self.threads}])
            answer = process.receive(LONGEST, read)
        except BaseException:
            with self._lock:
                self._alive.discard(process)
            process.close()
            raise
        with self._lock:
            self._idle.append(process)
        return answer

    def close(self) -> None:
        """End all processes; runs under way stop where they are, and go on from their checkpoints the next time."""
        self._stopped = True
        with self._lock:
            held, self._alive = list(self._alive), set()
            self._idle = []
        for process in held:
            process.close()
