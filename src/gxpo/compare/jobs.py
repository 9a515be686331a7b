"""Job runners: train many runs at a time in worker processes of this machine, or as tasks of a Ray cluster.

A job is a run directory and its keys. A worker process trains one job after the other with its threads pinned, dies
with this process, and is replaced if it dies; a run continues from its checkpoint to the bit, so nothing has to be
saved on the way out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar

from gxpo.base.errors import need
from gxpo.base.processes import Ended, Process
from gxpo.compare import worker

LONGEST_RUN = 30 * 86400.0  # seconds
TAIL = 1 << 15  # bytes, more than two lines of metrics
ATTEMPTS = 2  # at a run whose process dies
STOPPED = "not finished"  # the trouble of a run begins with this if the same command takes it up again

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Job:
    """A run to train.

    path  of its directory
    keys  all of its configuration
    keep  whether checkpoints, rollouts and report stay
    """

    path: Path
    keys: Mapping[str, Any]
    keep: bool = True

    @property
    def is_done(self) -> bool:
        return (self.path / worker.DONE).is_file()

    @property
    def trouble(self) -> str:
        """Reason why the run ended before its budget; empty if it did not, or is not finished."""
        return str(json.loads((self.path / worker.DONE).read_text())["trouble"]) if self.is_done else ""

    def progress(self) -> dict[str, Any]:
        """Newest complete line of the run's metrics; empty before the first."""
        try:
            with (self.path / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
                lines = file.read().split(b"\n")
            return json.loads(lines[-2])  # what follows the last line end is not whole
        except (OSError, IndexError, json.JSONDecodeError):
            return {}


class Runner(Protocol):
    """Callable that trains jobs and yields (job, trouble) as they end, finished ones first. A trouble that begins with
    `STOPPED` belongs to a run that the same command takes up again."""

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, str]]: ...


def processors() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Local:
    """Runner with worker processes on this machine.

    workers  processes at a time; None: one for every `threads` cores
    threads  of each process; a run repeats bit for bit only with the same number
    """

    def __init__(self, workers: int | None = None, threads: int = 1) -> None:
        self.threads = threads
        self.workers = workers or max(1, processors() // threads)
        self._lock = Lock()
        self._idle: list[Process] = []
        self._alive: set[Process] = set()
        self._stopped = False

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, str]]:
        yield from ((job, job.trouble) for job in jobs if job.is_done)
        yield from self._map(lambda job: (job, self._train(job)), [job for job in jobs if not job.is_done])

    def probe(self, keys: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Measure two steps of each configuration (`gxpo.training.probe`); figures in the order of `keys`."""
        # The first goes alone: it may have to make the files that the others read, as a warm-started model.
        figures_by_index: dict[int, dict[str, Any]] = {}
        for indexed_keys in (list(enumerate(keys))[:1], list(enumerate(keys))[1:]):
            ask = lambda pair: (pair[0], self._ask({"probe": True, "keys": dict(pair[1])}, dict))  # noqa: E731
            figures_by_index |= dict(self._map(ask, indexed_keys))
        return [figures_by_index[i] for i in range(len(keys))]

    def _map(self, work: Callable[[T], U], items: Sequence[T]) -> Iterator[U]:
        """Yield results of `work` as they come; an exception or an abandoned loop ends all worker processes."""
        if not items:
            return
        # Threads and not processes: each only waits for a worker process.
        pool = ThreadPoolExecutor(min(self.workers, len(items)))
        # GeneratorExit counts as well: a caller that stops iterating must not leave runs training in the background.
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
        request = {"path": str(job.path), "keys": dict(job.keys), "keep": job.keep}
        # A process may die by what is not the run's fault (memory, a signal), so it is tried once more.
        for attempt in range(ATTEMPTS):
            try:  # a second attempt continues from the checkpoint of the first
                return str(self._ask(request, dict)["trouble"])
            except (Ended, OSError) as error:
                if self._stopped:
                    return STOPPED
                if attempt + 1 == ATTEMPTS:
                    return f"{STOPPED}: {error}"
        raise AssertionError("unreachable")

    def _ask(self, item: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Send an item to an idle or a new process and return its answer; `Ended` or OSError if the process dies."""
        with self._lock:
            if self._stopped:
                raise Ended("died", "stopped")
            # Processes are reused: importing torch takes longer than a short run.
            process = self._idle.pop() if self._idle else Process(str(Path(worker.__file__)))
            self._alive.add(process)
        try:
            process.send([{**item, "threads": self.threads}])
            answer = process.receive(LONGEST_RUN, read)
        except BaseException:  # a process in an unknown state is never handed another item
            with self._lock:
                self._alive.discard(process)
            process.close()
            raise
        with self._lock:
            self._idle.append(process)
        return answer

    def close(self) -> None:
        """End all processes. Runs in progress stop, and continue from their checkpoints the next time."""
        self._stopped = True
        with self._lock:
            processes, self._alive = list(self._alive), set()
            self._idle = []
        for process in processes:
            process.close()


class Ray(Local):
    """Runner on a Ray cluster: each run is a task of as many cores as it has threads, on any node.

    All nodes must see the directory of the comparison. A run whose node is lost continues on another, from its
    checkpoint. `workers` limits the runs at a time; None: as many as the cluster has room for.
    """

    def __init__(self, workers: int | None = None, threads: int = 1) -> None:
        self._ray = need("ray", "ray")
        if not self._ray.is_initialized():
            self._ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, configure_logging=False)
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        super().__init__(workers or max(1, cores // threads), threads)
        self._remote = self._ray.remote(num_cpus=threads, max_retries=ATTEMPTS - 1, retry_exceptions=True)(_run_on_node)

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, str]]:
        # Submitting one task for each free worker, not all at once, is what limits the runs at a time.
        yield from ((job, job.trouble) for job in jobs if job.is_done)
        queue = [job for job in jobs if not job.is_done]
        job_by_reference: dict[Any, Job] = {}
        while queue or job_by_reference:
            while queue and len(job_by_reference) < self.workers:
                job = queue.pop(0)
                reference = self._remote.remote(str(job.path.resolve()), dict(job.keys), job.keep, self.threads)
                job_by_reference[reference] = job
            ready_references, _ = self._ray.wait(list(job_by_reference), num_returns=1)
            job = job_by_reference.pop(ready_references[0])
            try:
                yield job, str(self._ray.get(ready_references[0]))
            # Errors of Ray are the cluster's: the same command takes the run up again.
            except self._ray.exceptions.RayError as error:
                yield job, f"{STOPPED}: {' '.join(str(error).split())[:300]}"

    def close(self) -> None:
        """Disconnect from the cluster; a cluster that was started here ends, with the runs in progress."""
        super().close()
        if self._ray.is_initialized():
            self._ray.shutdown()


def _run_on_node(path: str, keys: Mapping[str, Any], keep: bool, threads: int) -> str:
    """Train in a fresh process of the node, since threads must be set before torch is loaded."""
    environment = {**os.environ, **{name: str(threads) for name in worker.THREADS}}
    item = {"path": path, "keys": dict(keys), "keep": keep}
    program = [sys.executable, "-m", "gxpo.compare.worker"]
    process = subprocess.run(
        program, input=json.dumps(item), text=True, capture_output=True, env=environment, check=False
    )
    if process.returncode:
        raise RuntimeError(f"its process ended with exit code {process.returncode}: {process.stderr.strip()[-300:]}")
    return (
        str(json.loads(process.stdout.splitlines()[-1])["trouble"]) if Path(path).exists() else "its directory is gone"
    )
