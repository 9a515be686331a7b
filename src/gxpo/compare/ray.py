"""Runs on a Ray cluster: each is a task of as many cores as it has threads, on whichever node Ray puts it.

The directory of the comparison must be one that all nodes see. A run whose node is lost is begun again from its
checkpoint on another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base.errors import need
from gxpo.compare import worker
from gxpo.compare.jobs import ATTEMPTS, STOPPED, Job, Local


class Ray(Local):
    """Ray's own scheduling; `workers` limits how many run at a time, None: as many as the cluster has room for."""

    def __init__(self, workers: int | None = None, threads: int = 1) -> None:
        self._ray = need("ray", "ray")
        if not self._ray.is_initialized():
            self._ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, configure_logging=False)
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        super().__init__(workers or max(1, cores // threads), threads)
        self._remote = self._ray.remote(num_cpus=threads, max_retries=ATTEMPTS - 1, retry_exceptions=True)(_run)

    def __call__(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, str]]:
        yield from ((job, job.trouble) for job in jobs if job.done)
        waiting = [job for job in jobs if not job.done]
        begun: dict[Any, Job] = {}
        while waiting or begun:
            while waiting and len(begun) < self.workers:
                job = waiting.pop(0)
                reference = self._remote.remote(str(job.path.resolve()), dict(job.keys), job.keep, self.threads)
                begun[reference] = job
            ended, _ = self._ray.wait(list(begun), num_returns=1)
            job = begun.pop(ended[0])
            try:
                yield job, str(self._ray.get(ended[0]))
            except self._ray.exceptions.RayError as error:
                yield job, f"{STOPPED}: {' '.join(str(error).split())[:300]}"

    def close(self) -> None:
        """Let go of the cluster; tasks under way end with it where it was started here."""
        super().close()
        if self._ray.is_initialized():
            self._ray.shutdown()


def _run(path: str, keys: Mapping[str, Any], keep: bool, threads: int) -> str:
    """A run in a fresh process of the node, whose threads are set before torch is loaded."""
    import json

    environment = {**os.environ, **{name: str(threads) for name in worker.THREADS}}
    item = {"path": path, "keys": dict(keys), "keep": keep}
    program = [sys.executable, "-m", "gxpo.compare.worker"]
    done = subprocess.run(program, input=json.dumps(item), text=True, capture_output=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"its process ended with exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return str(json.loads(done.stdout.splitlines()[-1])["trouble"]) if Path(path).exists() else "its directory is gone"
