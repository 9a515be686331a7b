"""Worker process of one side of a benchmark: sets the work up, then runs a round on request.

Started as `python -m gxpo.bench.worker` by `gxpo.bench.runner`, with one JSON line that says what to do; each further
line asks for a round, and a round is answered by a line of figures. What the work prints goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import IO, Any

from gxpo.base.library_variables import set_library_variables
from gxpo.bench.machine import forget_peak, pin, resident

Round = Callable[[], "Mapping[str, Any] | None"]


class Gate:
    """Synchronisation of rounds: the work calls `wait` before each, `finish_round` after it.

    A target that does not own its loop (a trainer's callbacks) takes the gate itself; others are functions.
    """

    def __init__(self, ask: IO[str], answer: IO[str]) -> None:
        self._ask, self._answer = ask, answer
        self._floor: float | None = None

    def wait(self) -> bool:
        """Block until the next round; False: there are no more."""
        if self._floor is None:
            self._floor = resident("VmRSS")
            self._say({"ready": True, "memory_floor_mb": self._floor})
        if not self._ask.readline().strip():
            return False
        forget_peak()
        self._cpu, self._began = time.process_time(), time.perf_counter()
        return True

    def finish_round(self, figures: Mapping[str, Any] | None = None) -> None:
        """End a round; `figures` may hold its own `seconds`, if not all of the round counts."""
        seconds = time.perf_counter() - self._began
        peak, floor = resident("VmHWM"), self._floor or 0.0
        self._say(
            {
                "seconds": seconds,
                "cpu_seconds": time.process_time() - self._cpu,
                "memory_mb": max(0.0, peak - floor),
                **(figures or {}),
            }
        )

    def _say(self, line: Mapping[str, Any]) -> None:
        self._answer.write(json.dumps(line) + "\n")
        self._answer.flush()


def target(path: str) -> Any:
    """The function `module:name`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the work prints must not get between the answers
    request = json.loads(sys.stdin.readline())
    # Before torch is imported, which counts the processors that it may use.
    pin(request["threads"])
    set_library_variables()
    import torch

    torch.set_num_threads(request["threads"])
    gate = Gate(sys.stdin, answer)
    try:
        work = target(request["target"])(**request["arguments"])
        if getattr(work, "holds_gate", False):
            work(gate)
            return
        while gate.wait():
            gate.finish_round(work())
    except Exception as error:
        traceback.print_exc()
        gate._say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
