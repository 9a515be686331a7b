"""Processes that run other people's scoring functions: whatever an item does, it costs itself alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gxpo.errors import ConfigError, GxpoError
from gxpo.processes import LOADING, Process
from gxpo.rewards.worker import Reply

PROGRAM = str(Path(__file__).with_name("worker.py"))
CHUNK = 64  # items sent at once

Call = tuple[int, bytes]  # (which function, pickled (args, keywords))


class _Worker(Process):
    """One process. `sources` as `gxpo.rewards.worker.load` takes them, with "label" and "is_scorer"."""

    def __init__(self, sources: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(PROGRAM)
        self.declared: list[tuple[str, ...] | None] = []
        try:
            self.send(list(sources))
            for source in sources:
                self.declared.append(self._loaded(source["label"]))
        except (EOFError, OSError) as error:
            label = sources[len(self.declared)]["label"]
            raise ConfigError(f"reward {label}: the process that loads it died ({self.exit_code()})") from error
        except BaseException:
            self.close()
            raise

    def _loaded(self, label: str) -> tuple[str, ...] | None:
        """The next function's parameter names, None for a task's scorer."""
        reply = self.receive(LOADING)
        if reply is None:
            raise ConfigError(f"reward {label}: loading it took longer than {LOADING:g} s")
        status, _, value = reply
        if status == "unusable":
            raise ConfigError(f"reward {label}: {value}")
        return None if value is None else tuple(value)


class Workers:
    """`count` processes that hold the same functions; started when needed, replaced when an item breaks one.

    The first starts at once, so that a function that can't be loaded is a ConfigError before anything runs.
    """

    def __init__(self, sources: Sequence[Mapping[str, Any]], *, timeout: float, count: int = 1) -> None:
        self.sources = list(sources)
        self.timeout = timeout
        first = _Worker(self.sources)
        self.declared = first.declared  # parameter names of each function, None for a task's scorer
        self._workers: list[_Worker | None] = [first, *[None] * (count - 1)]

    def run(self, calls: Sequence[Call]) -> list[Reply]:
        """What came of each call, in order: a reply of the worker, "timeout" or "died" with a message."""
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

    def _run_chunk(self, slot: int, calls: Sequence[Call]) -> list[Reply]:
        replies: list[Reply] = []
        fruitless = 0
        while len(replies) < len(calls):
            worker = self._workers[slot] or _Worker(self.sources)
            self._workers[slot] = None  # what is interrupted here is not used again
            try:
                worker.send(list(calls[len(replies) :]))
            except OSError as error:  # it died between two batches: no item is to blame
                fruitless += 1
                if fruitless > 3:
                    raise GxpoError(f"reward workers die before they are used ({worker.exit_code()})") from error
                worker.close()
                continue
            try:
                while len(replies) < len(calls):
                    reply = worker.receive(self.timeout)
                    if reply is None:
                        worker.close()
                        replies.append(("timeout", f"took longer than {self.timeout:g} s; its worker was killed"))
                        break
                    replies.append((reply[0], reply[1]))
                else:
                    self._workers[slot] = worker
            except (EOFError, OSError):
                replies.append(("died", f"its worker died ({worker.exit_code()})"))
        return replies

    def close(self) -> None:
        """End the processes; they start again if needed."""
        for process in self._workers:
            if process is not None:
                process.close()
        self._workers = [None] * len(self._workers)
