"""Episodes that act at the same time in one worker process, each in a thread: for environments that wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gxpo.base.errors import GxpoError
from gxpo.base.processes import Ended, loaded
from gxpo.environments.envs.checked import checked_answer
from gxpo.environments.envs.episodes import FRUITLESS, Answer, Item, Log, Worker, log, seen
from gxpo.environments.envs.sources import EnvSource

AT_ONCE = 1024  # episodes of one process that act at the same time
SIGN = 5.0  # seconds in which a process whose episode hangs has to show that it is alive, or the episode's limit


@dataclass(eq=False)
class _Posted:
    """Items of one episode that the process has, in order. `deadline`: when they hang."""

    name: str
    items: list[Item]
    deadline: float


class Together:
    """Episodes in one worker process, up to `at_once` of which act at the same time.

    timeout  seconds for one item, the processor's time for others included
    worker   a process that has loaded the environment; None: one is started

    An episode that takes longer than `timeout` is over ("timeout"); its thread is left behind, and the process replaced
    once half of `at_once` are. A process that ends, or shows no sign of life when an episode hangs, is replaced, and
    all episodes are gone through again up to where they were. Those that were acting then act in ever smaller groups
    until the one that ends its process acts alone: that one is lost ("died", "timeout"), the others have had their
    turn. Where it was killed from outside, one that acted alone acts once more.
    """

    def __init__(self, source: EnvSource, timeout: float, at_once: int = AT_ONCE, worker: Worker | None = None) -> None:
        self.source, self.timeout, self.at_once = source, timeout, at_once
        self.restored = 0
        self.complaints: list[Answer] = []
        self._worker = worker
        self._logs: dict[str, Log] = {}
        self._queue: deque[Item] = deque()  # what the process does not have yet
        self._posted: dict[bytes, _Posted] = {}
        self._ignored: set[bytes] = set()  # keys of what hangs, or was given up
        self._closing: set[bytes] = set()
        self._found: dict[str, Answer] = {}  # by episode: one item of each is under way at most
        self._lost: dict[str, Answer] = {}  # episodes that could not be restored, until they are asked for

    # ------------------------------------------------------------ what a pool asks
    def about(self) -> dict[str, Any]:
        """`Host.about`."""
        return self._ready().about

    def run(self, items: Sequence[Item]) -> list[Answer]:
        """Results of the items, in order: those of `Host.run`, or "timeout" or "died". Of each episode one item."""
        named = [(operation, name or f"\0{i}", payload) for i, (operation, name, payload) in enumerate(items)]
        self.submit(named)
        while any(name not in self._found for _, name, _ in named):
            self.attend(self.patience())
        return [self._found.pop(name) for _, name, _ in named]

    def submit(self, items: Sequence[Item]) -> None:
        """Begin these items; `take` gives their results."""
        self._queue.extend(items)
        try:
            self._send()
        except Ended as end:
            self._recover(end)

    def take(self) -> dict[str, Answer]:
        """Results that are there, by episode."""
        found, self._found = self._found, {}
        return found

    def attend(self, seconds: float) -> None:
        """Wait for results, at most so long, and end what hangs."""
        try:
            self._attend(seconds)
        except Ended as end:
            self._recover(end)

    def patience(self) -> float:
        """Seconds until the next item hangs."""
        return max(0.0, min((p.deadline for p in self._posted.values()), default=0.0) - time.monotonic())

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        return bool(self._posted or self._queue)

    def fileno(self) -> int:
        """Of the connection, for `select`."""
        return self._ready().fileno()

    def dismiss(self, name: str) -> None:
        """Drop an episode, whatever it does, and close its instance."""
        self._found.pop(name, None)
        self._lost.pop(name, None)
        self._queue = deque(item for item in self._queue if item[1] != name)
        for key in [key for key, posted in self._posted.items() if posted.name == name]:
            self._ignored.add(key)
            del self._posted[key]
        if self._logs.pop(name, None) is not None and self._worker is not None:
            with suppress(OSError):  # the process is gone, and the instance with it
                self._closing.add(self._worker.post([("close", name, None)]))

    def flush(self) -> None:
        """Wait until dropped episodes are closed."""
        deadline = time.monotonic() + self.timeout
        while self._closing and (left := deadline - time.monotonic()) > 0:
            self.attend(min(left, self.patience()) if self._posted else left)

    def close(self) -> None:
        """End the process."""
        self._end_process()
        self._logs, self._found, self._lost = {}, {}, {}
        self._queue.clear()

    # ------------------------------------------------------------ to and from the process
    def _ready(self) -> Worker:
        if self._worker is None:
            self._worker = loaded(lambda: Worker(self.source))
        return self._worker

    def _end_process(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None
        for about in (self._posted, self._ignored, self._closing):
            about.clear()

    def _post(self, name: str, items: Sequence[Item]) -> None:
        worker = self._ready()
        try:
            key = worker.post([(operation, name.partition("\0")[0], payload) for operation, _, payload in items])
        except OSError as error:
            how = worker.exit_code()
            raise Ended("died", f"its process died ({how})", how) from error
        self._posted[key] = _Posted(name, list(items), time.monotonic() + self.timeout * len(items))

    def _send(self) -> None:
        while self._queue and len(self._posted) + len(self._ignored) < self.at_once:
            item = self._queue[0]
            if item[1] in self._lost:
                self._found[item[1]] = self._lost.pop(item[1])
            else:
                self._post(item[1], [item])
            self._queue.popleft()

    def _attend(self, seconds: float) -> None:
        for key, answers in self._ready().answers(seconds):
            if (posted := self._answered(key, answers)) is not None:
                self._note(posted.items[0], _read(posted, answers)[0])
        self._end_late()
        self._send()

    def _answered(self, key: bytes, answers: Any) -> _Posted | None:
        """What is answered; None for what nobody waits for."""
        if key in self._closing and answers[0][0] != "ok":
            self.complaints.append(answers[0])
        self._closing.discard(key)
        self._ignored.discard(key)
        return self._posted.pop(key, None)

    def _note(self, item: Item, answer: Answer) -> None:
        self._found[item[1]] = answer
        log(self._logs, item, answer)

    # ------------------------------------------------------------ what hangs, and what ends its process
    def _end_late(self) -> None:
        now = time.monotonic()
        late = [key for key, posted in self._posted.items() if posted.deadline <= now]
        if late and not self._alive():
            raise Ended("timeout", f"took longer than {self.timeout:g} s; its process was killed")
        for key in late:
            if (posted := self._posted.pop(key, None)) is not None:
                self._ignored.add(key)
                message = f"{posted.items[0][0]}: took longer than {self.timeout:g} s"
                self._note(posted.items[0], ("timeout", message))
        if late and len(self._ignored) * 2 >= self.at_once:
            self._queue.extendleft(posted.items[0] for posted in self._posted.values())
            self._replace()

    def _alive(self) -> bool:
        """Whether the process answers at all: one that holds the interpreter's lock does not."""
        worker = self._ready()
        try:
            sign = worker.post([])
        except OSError:
            return False
        deadline = time.monotonic() + max(SIGN, self.timeout)
        while (left := deadline - time.monotonic()) > 0:
            for key, answers in worker.answers(left):
                if key == sign:
                    return True
                if (posted := self._answered(key, answers)) is not None:
                    self._note(posted.items[0], _read(posted, answers)[0])
        return False

    def _recover(self, end: Ended) -> None:
        """The process has ended: find out who ended it, and go on in another."""
        for _ in range(FRUITLESS + 1):
            waiting, self._queue = self._queue, deque()
            self._search([posted.items[0] for posted in self._posted.values()], end)
            self._queue.extend(waiting)
            try:
                return self._send()
            except Ended as another:
                end = another
        raise GxpoError(f"environment {self.source.name}: its processes die before anything is asked of them ({end})")

    def _search(self, suspects: Sequence[Item], end: Ended, *, again: bool = False) -> None:
        """Have these act again in smaller groups; one that ends its process alone is lost. again: it has acted alone
        before"""
        groups = (suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :])
        if len(suspects) == 1:
            if end.from_outside and not again:
                groups = (suspects,)
            else:
                self._note(suspects[0], (end.kind, f"{suspects[0][0]}: {end}"))
                groups = ()
        self._replace()
        for group in groups:
            self._queue.extend(group)
            try:
                self._send()
                while self._posted or self._queue:
                    self._attend(self.patience())
            except Ended as another:
                left = [*(posted.items[0] for posted in self._posted.values()), *self._queue]
                self._queue.clear()
                self._search(left, another, again=len(suspects) == 1)

    def _replace(self) -> None:
        """A new process in which all episodes are where they were; those that do not come there are lost."""
        for attempt in range(FRUITLESS + 1):
            self._end_process()
            try:
                return self._again()
            except Ended as end:
                if end.from_outside and not attempt:
                    continue
                for posted in self._posted.values():
                    self._lose(posted.name, str(end))
        raise GxpoError(f"environment {self.source.name}: its processes die while episodes are gone through again")

    def _again(self) -> None:
        """Go through all episodes again, at the same time."""
        left = deque(self._logs.items())
        while left or self._posted:
            while left and len(self._posted) < self.at_once:
                name, log = left.popleft()
                self._post(name, log.items)
            for key, answers in self._ready().answers(self.patience()):
                if (posted := self._answered(key, answers)) is not None:
                    self._compare(posted, _read(posted, answers))
            now = time.monotonic()
            for key, posted in [(k, p) for k, p in self._posted.items() if p.deadline <= now]:
                del self._posted[key]
                self._ignored.add(key)
                self._lose(posted.name, f"took longer than {self.timeout:g} s an item")
        self.restored += len(self._logs)

    def _compare(self, posted: _Posted, answers: Sequence[Answer]) -> None:
        failed = next((answer for answer in answers if answer[0] != "ok"), None)
        if failed is not None:
            self._lose(posted.name, str(failed[1]))
        elif self._logs[posted.name].seen != seen(answers[-1]):
            self._lose(posted.name, "not deterministic: the same seed and actions led elsewhere")

    def _lose(self, name: str, why: str) -> None:
        del self._logs[name]
        self._lost[name] = ("died", f"lost with its process; going through it again: {why}")


def _read(posted: _Posted, answers: Any) -> list[Answer]:
    """Validated results of an episode's items, the last of which may be a failure."""
    try:
        if not 1 <= len(answers) <= len(posted.items):
            raise ValueError("another number of results")
        return [checked_answer(item[0], answer) for item, answer in zip(posted.items, answers, strict=False)]
    except Exception as error:  # it is user code that wrote it
        why = " ".join(str(error).split())[:200]
        operation = posted.items[0][0]
        return [("died", f"{operation}: its process wrote something that is no answer ({type(error).__name__}: {why})")]
