"""Interleaved benchmark of two implementations, each in its own process: A B A B."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gxpo.base.errors import GxpoError
from gxpo.bench.machine import OtherProcesses, cores

QUIET = 0.25  # cores that other processes may use on average during a measurement
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class BenchError(GxpoError):
    """Error for a measurement that can't be made, or must not be reported."""


@dataclass(frozen=True)
class Side:
    """One implementation of the work.

    target     "module:function"; called with `arguments` in a fresh process, it returns a function that does one round
               and may return figures (its `seconds` then replace the measured time of the round)
    python     interpreter of another environment; None: this one
    """

    name: str
    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """Row of a suite: speed-up of `candidate` over `baseline` (ratio = baseline / candidate, in seconds).

    figures  values known beforehand, such as the ratio of tokens, copied into the row
    """

    name: str
    candidate: Side
    baseline: Side
    rounds: int = 5
    warmup: int = 1
    figures: Mapping[str, Any] = field(default_factory=dict)


class Worker:
    """Process of one side."""

    def __init__(self, side: Side, threads: int) -> None:
        self.side = side
        environment = {**os.environ, **{name: str(threads) for name in THREADS}, "HF_HUB_OFFLINE": "1", **side.env}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the process
        self.process = subprocess.Popen(
            [side.python or sys.executable, "-m", "gxpo.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        # The work is set up before the first round, and its memory is the floor.
        self._write({"target": side.target, "arguments": dict(side.arguments), "threads": threads})
        self.floor = self._read()["memory_floor_mb"]

    def round(self) -> dict[str, Any]:
        """Run one round and return its figures."""
        self._write({"round": True})
        return self._read()

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(f"{self.side.name}: its process ended: {self._last_words()}") from None

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise BenchError(f"{self.side.name}: its process ended: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise BenchError(f"{self.side.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            status = None
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1] if lines else f"exit status {status}"

    def close(self) -> None:
        """End the process; kill it if it does not end by itself."""
        # A worker ends when its input does; one that hangs must not outlive the suite.
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


def check_quiet(seconds: float = 1.0) -> None:
    """Raise `BenchError` if other processes are using the machine now."""
    other_processes = OtherProcesses()
    start = time.process_time()
    time.sleep(seconds)
    cores_used = other_processes.cores(time.process_time() - start)
    if cores_used > QUIET:
        raise BenchError(busy_message("now", cores_used))


def measure(
    case: Case, *, threads: int | None = None, anyway: bool = False, notify: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure the row of a case. `BenchError` if others used more than `QUIET` cores meanwhile, unless `anyway`."""
    threads = threads or cores()
    notify(f"{case.name}: {case.candidate.name} against {case.baseline.name}")
    with ExitStack() as opened:
        # Both processes live through all rounds, which alternate: a slow minute of the machine hits both sides alike.
        sides = []
        for side in (case.candidate, case.baseline):
            worker = Worker(side, threads)
            opened.callback(worker.close)
            sides.append(worker)
        for _ in range(case.warmup):
            for worker in sides:
                worker.round()
        # Other processes are watched over all rounds, the setup left out.
        other_processes, start = OtherProcesses(), time.process_time()
        rounds = [[worker.round() for worker in sides] for _ in range(case.rounds)]
        # The time that workers used is not the others'.
        own_seconds = time.process_time() - start + sum(r["cpu_seconds"] for pair in rounds for r in pair)
        cores_used = other_processes.cores(own_seconds)
        memory_floors = [worker.floor for worker in sides]
    if cores_used > QUIET and not anyway:
        raise BenchError(busy_message(f"while {case.name} was measured", cores_used))
    return row_of(case, rounds, memory_floors, other_cores=cores_used)


def row_of(
    case: Case, rounds: Sequence[Sequence[Mapping[str, Any]]], floors: Sequence[float], *, other_cores: float
) -> dict[str, Any]:
    """Figures of a row: medians over the rounds, and the smallest and largest ratio of two neighbouring rounds."""
    # The ratio is the median of ratios, not a ratio of medians: drift of the machine cancels within a pair of rounds.
    ratios = [baseline["seconds"] / candidate["seconds"] for candidate, baseline in rounds]
    row: dict[str, Any] = {
        "name": case.name,
        "ratio": median(ratios),
        "spread": [min(ratios), max(ratios)],
        **case.figures,
        "rounds": case.rounds,
        "others_cores": round(other_cores, 3),
    }
    for place, side in enumerate((case.candidate, case.baseline)):
        side_rounds = [pair[place] for pair in rounds]
        first = side_rounds[0]
        figures = {k: v for k in first if isinstance(v := first[k], (int, float)) and k != "cpu_seconds"}
        row[side.name] = {k: median(r[k] for r in side_rounds) for k in figures} | {"memory_floor_mb": floors[place]}
    memory_of_sides = [row[side.name]["memory_mb"] for side in (case.candidate, case.baseline)]
    if memory_of_sides[0] > 0:
        row["memory_ratio"] = memory_of_sides[0] / memory_of_sides[1] if memory_of_sides[1] else None
    return row


def busy_message(when: str, cores_used: float) -> str:
    return (
        f"the machine is not idle: other processes used {cores_used:.2f} cores {when} (at most {QUIET} may). "
        "Nothing is reported; try again later, or --anyway to have it marked"
    )
