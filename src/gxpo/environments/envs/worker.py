"""Worker program of environments: loads one class, then runs items one after the other, or many at the same time.

See `gxpo.base.processes`. The other sides are `envs.episodes`, which sends lists of items that are answered in turn
with the results of `Host.run`, and `envs.together`, which posts lists of items of one episode each: such a list
has a thread of its own, and its answer are all its results.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from gxpo.base.usercode import Unusable
from gxpo.environments.envs.checked import to_json
from gxpo.environments.envs.host import Host

if TYPE_CHECKING:
    from gxpo.base.processes import Line

Job = tuple[Sequence[tuple[str, str, Any]], Callable[[str], None]]  # items, and the function that sends their results


def serve(line: Line) -> None:
    """Load the class of the first list; then answer each item of each further list."""
    try:
        host = Host(next(line.receive()))
    except Unusable as error:
        line.answer(to_json(["unusable", str(error)]))
        return
    line.answer(to_json(["loaded", host.about]))
    threads = Threads(host)
    while True:
        try:
            for item in line.receive():
                if isinstance(item, list):
                    threads.run(item, line.later())
                else:
                    line.answer(host.run(*item))
        except EOFError:
            if threads.thread_count:
                os._exit(0)  # one of them may never come back
            raise


class Threads:
    """Threads that run lists of items: as many as there are lists under way."""

    def __init__(self, host: Host) -> None:
        self.host, self.thread_count = host, 0
        self._idle = 0
        self._lock = threading.Lock()
        self._jobs = SimpleQueue[Job]()

    def run(self, items: Sequence[tuple[str, str, Any]], answer: Callable[[str], None]) -> None:
        """Begin a list; an empty one is answered at once, as a sign that the process is alive."""
        if not items:
            return answer("[]")
        # below zero: more jobs than idle threads
        self._jobs.put((items, answer))
        with self._lock:
            self._idle -= 1
            if self._idle >= 0:
                return
            self._idle, self.thread_count = 0, self.thread_count + 1
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            items, answer = self._jobs.get()
            results: list[str] = []
            for item in items:
                results.append(self.host.run(*item))
                # a failure ends the episode: the items after it have nothing to act in
                if not results[-1].startswith('["ok"'):
                    break
            answer(f"[{', '.join(results)}]")
            with self._lock:
                self._idle += 1
