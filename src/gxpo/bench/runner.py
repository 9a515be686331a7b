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
from gxpo.bench.machine import Others, cores

QUIET = 0.25  # cores that others may use on average while something is measured
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class BenchError(GxpoError):
    """A measurement that can't be made, or must not be reported."""


@dataclass(frozen=True)
class Side:
    """One implementation of the work.

    target     "module:function"; called with `arguments` in a fresh process it returns a function that does one round
               and may give figures of it (`seconds` there replaces the time that the round took)
    python     interpreter of another environment; None: this one
    """

    name: str
    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A row: speed-up of `own` over `other` (ratio = other / own, of seconds).

    figures  what is known beforehand, such as the ratio of tokens, put into the row as it is
    """

    name: str
    own: Side
    other: Side
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
        self._write({"target": side.target, "arguments": dict(side.arguments), "threads": threads})
        self.floor = self._read()["memory_floor_mb"]

    def round(self) -> dict[str, Any]:
        """Run one round; gives its figures."""
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
        found = json.loads(line)
        if "error" in found:
            raise BenchError(f"{self.side.name}: {found['error']}")
        return found

    def _last_words(self) -> str:
        try:
            status = self.process.wait(5)
        except subprocess.TimeoutExpired:
            status = None
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1] if lines else f"exit status {status}"

    def close(self) -> None:
        """End the process; one that does not end by itself is killed."""
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
    others = Others()
    own = time.process_time()
    time.sleep(seconds)
    used = others.cores(time.process_time() - own)
    if used > QUIET:
        raise BenchError(busy("now", used))


def measure(
    case: Case, *, threads: int | None = None, anyway: bool = False, notify: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure the row of a case. `BenchError` if others used more than `QUIET` cores meanwhile, unless `anyway`."""
    threads = threads or cores()
    notify(f"{case.name}: {case.own.name} against {case.other.name}")
    with ExitStack() as opened:
        sides = []
        for side in (case.own, case.other):
            worker = Worker(side, threads)
            opened.callback(worker.close)
            sides.append(worker)
        for _ in range(case.warmup):
            for worker in sides:
                worker.round()
        others, began = Others(), time.process_time()
        rounds = [[worker.round() for worker in sides] for _ in range(case.rounds)]
        own = time.process_time() - began + sum(r["cpu_seconds"] for both in rounds for r in both)
        used = others.cores(own)
        memory_floors = [worker.floor for worker in sides]
    if used > QUIET and not anyway:
        raise BenchError(busy(f"while {case.name} was measured", used))
    return row_of(case, rounds, memory_floors, others=used)


def row_of(
    case: Case, rounds: Sequence[Sequence[Mapping[str, Any]]], floors: Sequence[float], *, others: float
) -> dict[str, Any]:
    """Figures of a row: medians over the rounds, the least and the largest ratio of two neighbouring rounds."""
    ratios = [other["seconds"] / own["seconds"] for own, other in rounds]
    row: dict[str, Any] = {
        "name": case.name,
        "ratio": median(ratios),
        "spread": [min(ratios), max(ratios)],
        **case.figures,
        "rounds": case.rounds,
        "others_cores": round(others, 3),
    }
    for place, side in enumerate((case.own, case.other)):
        own = [both[place] for both in rounds]
        figures = {k: v for k in own[0] if isinstance(v := own[0][k], (int, float)) and k != "cpu_seconds"}
        row[side.name] = {k: median(r[k] for r in own) for k in figures} | {"memory_floor_mb": floors[place]}
    held = [row[side.name]["memory_mb"] for side in (case.own, case.other)]
    if held[0] > 0:
        row["memory_ratio"] = held[0] / held[1] if held[1] else None
    return row


def busy(when: str, used: float) -> str:
    return (
        f"the machine is not idle: other processes used {used:.2f} cores {when} (at most {QUIET} may). "
        "Nothing is reported; try again later, or --anyway to have it marked"
    )
