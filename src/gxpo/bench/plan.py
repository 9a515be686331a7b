"""Measurement plan of a suite, and the suite's entries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gxpo.base.errors import need
from gxpo.bench import runner
from gxpo.bench.machine import OtherProcesses

Row = dict[str, Any]
DTYPE = {"tiny": "float32", "smollm2": "bfloat16"}  # of the parameters, on both sides


def save_models(folder: str, names: Sequence[str]) -> None:
    """Save the models as directories for both sides."""
    from gxpo.training import models

    for name in names:
        source = {"tiny": "tiny:cold", "smollm2": "smollm2-135m"}[name]
        model = models.load(source, task="arithmetic", dtype=DTYPE[name])
        model.model.save_pretrained(f"{folder}/{name}")
        model.tokenizer.save_pretrained(f"{folder}/{name}")


@dataclass
class Plan:
    """Settings of a measurement.

    folder   empty directory for models and prompts
    threads  of every process that does the work
    rounds   of each side; None: as many as a case says, 2 with `quick`
    quick    fewer and smaller rows
    anyway   measure although others are using the machine; such rows say `busy`
    python   interpreter of an environment with TRL; None: this one
    vllm     interpreter of one with vLLM; None: rows that need it are left out
    """

    folder: Path
    threads: int
    rounds: int | None = None
    quick: bool = False
    anyway: bool = False
    python: str | None = None
    vllm: str | None = None
    notify: Callable[[str], None] = lambda line: None

    def models(self, *names: str) -> str:
        """Path of the folder, after saving these models in it."""
        need("transformers.utils.logging", "train").disable_progress_bar()
        save_models(str(self.folder), [name for name in names if not (self.folder / name).exists()])
        return str(self.folder)

    def measure(self, case: runner.Case) -> Row:
        """Measure the row of a case."""
        rounds = self.rounds or (2 if self.quick else case.rounds)
        row = runner.measure(replace(case, rounds=rounds), threads=self.threads, anyway=self.anyway, notify=self.notify)
        return self.with_marks(row)

    def with_marks(self, row: Row) -> Row:
        """The row with notes on how it was measured."""
        busy = row.get("others_cores", 0.0) > runner.QUIET
        return row | ({"busy": True} if busy else {}) | ({"quick": True} if self.quick else {})

    def once(self, name: str, target: str, **arguments: Any) -> Row:
        """Figures of a single untimed round of work. Raises the same errors as `measure`."""
        worker = runner.Worker(runner.Side(name, target, arguments), self.threads)
        try:
            other_processes, start = OtherProcesses(), time.process_time()
            # Own use is known exactly: what others used is the rest of what the machine counted.
            figures = worker.round()
            cores_used = other_processes.cores(time.process_time() - start + figures["cpu_seconds"])
        finally:
            worker.close()
        if cores_used > runner.QUIET and not self.anyway:
            raise runner.BenchError(runner.busy_message(f"while {name} was measured", cores_used))
        return figures | {"others_cores": round(cores_used, 3)}


@dataclass(frozen=True)
class Entry:
    """Rows measured together: one of this name, or several whose names begin with it.

    timed   clocks are compared, so the machine must be idle
    trl     needs an environment with TRL
    """

    name: str
    measure: Callable[[Plan], list[Row]]
    timed: bool = True
    trl: bool = False


def of_case(case: runner.Case, *models: str) -> Entry:
    """The entry of a case that needs these models in the plan's folder."""

    def measure(plan: Plan) -> list[Row]:
        plan.models(*models)
        return [plan.measure(case)]

    return Entry(case.name, measure)
