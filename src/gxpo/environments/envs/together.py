"""Concurrent episodes in one worker process, a thread each: for environments that wait for something outside it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gxpo.base.errors import GxpoError
from gxpo.base.processes import Ended, start_process
from gxpo.environments.envs.checked import checked_answer
from gxpo.environments.envs.episodes import FRUITLESS, Answer, Item, Log, Worker, log, reproducible_part
from gxpo.environments.envs.sources import EnvSource

AT_ONCE = 1024  # episodes of one process that act at the same time
SIGN = 5.0  # seconds in which a process whose episode hangs has to show that it is alive, or the episode's limit


@dataclass(eq=False)
class _Posting:
    """Items of one episode that were sent to the process, in order; after `deadline` they count as hanging."""

    name: str
    items: list[Item]
    deadline: float


class Together:
    """Episodes in one worker process, up to `at_once` of which act at the same time.

    timeout  seconds for one item, the processor's time for others included
    worker   a process that has loaded the environment; None: one is started

    An episode that takes longer than `timeout` is over ("timeout"); its thread is left behind, and the process is
    replaced once half of `at_once` threads are. A process that ends, or shows no sign of life when an episode hangs, is
    replaced, and all episodes are replayed. Those that were acting then act in ever smaller groups until the one that
    ends its process acts alone: that one is lost ("died", "timeout"), the others have had their turn. If the process
    was killed from outside, one that acted alone acts once more.
    """

    def __init__(self, source: EnvSource, timeout: float, at_once: int = AT_ONCE, worker: Worker | None = None) -> None:
        self.source, self.timeout, self.at_once = source, timeout, at_once
        self.n_restored = 0
        self.complaints: list[Answer] = []
        self._worker = worker
        self._logs: dict[str, Log] = {}
        self._queue: deque[Item] = deque()  # not yet sent to the process
        self._postings: dict[bytes, _Posting] = {}
        self._ignored: set[bytes] = set()  # keys of items that hang, or whose episode was dropped
        self._closing: set[bytes] = set()
        self._answers: dict[str, Answer] = {}  # by episode: one item of each is under way at most
        self._failures: dict[str, Answer] = {}  # episodes that could not be restored, until they are asked for

    # ------------------------------------------------------------ the pool's side
    def about(self) -> dict[str, Any]:
        """`Host.about`."""
        return self._ensure_worker().about

    def run(self, items: Sequence[Item]) -> list[Answer]:
        """Results of the items, in order: those of `Host.run`, or "timeout" or "died". Of each episode one item."""
        named_items = [(operation, name or f"\0{i}", payload) for i, (operation, name, payload) in enumerate(items)]
        # operations of no episode (a seed's content) need a name each, cut off again before they are sent
        self.submit(named_items)
        while any(name not in self._answers for _, name, _ in named_items):
            self.attend(self.patience())
        return [self._answers.pop(name) for _, name, _ in named_items]

    def submit(self, items: Sequence[Item]) -> None:
        """Begin these items; `take` gives their results."""
        self._queue.extend(items)
        try:
            self._send()
        except Ended as end:
            self._recover(end)

    def take(self) -> dict[str, Answer]:
        """Take the results that have arrived, by episode."""
        answers, self._answers = self._answers, {}
        return answers

    def attend(self, seconds: float) -> None:
        """Wait for results for at most `seconds`, and end episodes that hang."""
        try:
            self._attend(seconds)
        except Ended as end:
            self._recover(end)

    def patience(self) -> float:
        """Seconds until the earliest deadline."""
        return max(0.0, min((p.deadline for p in self._postings.values()), default=0.0) - time.monotonic())

    @property
    def busy(self) -> bool:
        """True if an item is under way or queued."""
        return bool(self._postings or self._queue)

    def fileno(self) -> int:
        """File number of the connection to the process, for `select`."""
        return self._ensure_worker().fileno()

    def dismiss(self, name: str) -> None:
        """Drop an episode, whatever it does, and close its instance."""
        self._answers.pop(name, None)
        self._failures.pop(name, None)
        self._queue = deque(item for item in self._queue if item[1] != name)
        # its thread can't be stopped: what it still answers goes nowhere
        for key in [key for key, posting in self._postings.items() if posting.name == name]:
            self._ignored.add(key)
            del self._postings[key]
        if self._logs.pop(name, None) is not None and self._worker is not None:
            with suppress(OSError):  # the process is gone, and the instance with it
                self._closing.add(self._worker.post([("close", name, None)]))

    def flush(self) -> None:
        """Wait until dropped episodes are closed, for at most `timeout`."""
        deadline = time.monotonic() + self.timeout
        while self._closing and (seconds_left := deadline - time.monotonic()) > 0:
            self.attend(min(seconds_left, self.patience()) if self._postings else seconds_left)

    def close(self) -> None:
        """End the process."""
        self._end_process()
        self._logs, self._answers, self._failures = {}, {}, {}
        self._queue.clear()

    # ------------------------------------------------------------ to and from the process
    def _ensure_worker(self) -> Worker:
        if self._worker is None:
            self._worker = start_process(lambda: Worker(self.source))
        return self._worker

    def _end_process(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None
        for about in (self._postings, self._ignored, self._closing):
            about.clear()

    def _post(self, name: str, items: Sequence[Item]) -> None:
        """Send items of one episode; `Ended` if the process is gone."""
        worker = self._ensure_worker()
        try:
            key = worker.post([(operation, name.partition("\0")[0], payload) for operation, _, payload in items])
        except OSError as error:
            exit_text = worker.exit_code()
            raise Ended("died", f"its process died ({exit_text})", exit_text) from error
        self._postings[key] = _Posting(name, list(items), time.monotonic() + self.timeout * len(items))

    def _send(self) -> None:
        """Send queued items, as far as threads are free: a hanging one still holds its thread."""
        while self._queue and len(self._postings) + len(self._ignored) < self.at_once:
            item = self._queue[0]
            # an episode that no replay could restore is answered with that
            if item[1] in self._failures:
                self._answers[item[1]] = self._failures.pop(item[1])
            else:
                self._post(item[1], [item])
            self._queue.popleft()  # only now: if posting ends in `Ended`, the item is still queued

    def _attend(self, seconds: float) -> None:
        for key, answers in self._ensure_worker().answers(seconds):
            if (posting := self._settle(key, answers)) is not None:
                self._note(posting.items[0], _read(posting, answers)[0])
        self._end_late()
        self._send()

    def _settle(self, key: bytes, answers: Any) -> _Posting | None:
        """Take the items that an answer belongs to from those under way; None if nobody waits for them."""
        if key in self._closing and answers[0][0] != "ok":
            self.complaints.append(answers[0])
        self._closing.discard(key)
        self._ignored.discard(key)
        return self._postings.pop(key, None)

    def _note(self, item: Item, answer: Answer) -> None:
        self._answers[item[1]] = answer
        log(self._logs, item, answer)

    # ------------------------------------------------------------ episodes that hang, and that end their process
    def _end_late(self) -> None:
        """Answer items beyond their deadline with "timeout"."""
        time_now = time.monotonic()
        late = [key for key, posting in self._postings.items() if posting.deadline <= time_now]
        # an episode that holds the interpreter's lock makes all others late: one is to blame, not each
        if late and not self._alive():
            raise Ended("timeout", f"took longer than {self.timeout:g} s; its process was killed")
        for key in late:
            if (posting := self._postings.pop(key, None)) is not None:
                self._ignored.add(key)
                message = f"{posting.items[0][0]}: took longer than {self.timeout:g} s"
                self._note(posting.items[0], ("timeout", message))
        # threads that hang are never free again; the items under way begin anew in the next process
        if late and len(self._ignored) * 2 >= self.at_once:
            self._queue.extendleft(posting.items[0] for posting in self._postings.values())
            self._replace()

    def _alive(self) -> bool:
        """Return True if the process answers an empty message; one that holds the interpreter's lock does not."""
        worker = self._ensure_worker()
        try:
            sign_key = worker.post([])
        except OSError:
            return False
        deadline = time.monotonic() + max(SIGN, self.timeout)
        while (seconds_left := deadline - time.monotonic()) > 0:
            for key, answers in worker.answers(seconds_left):
                if key == sign_key:
                    return True
                if (posting := self._settle(key, answers)) is not None:
                    self._note(posting.items[0], _read(posting, answers)[0])
        return False

    def _recover(self, end: Ended) -> None:
        """Find the episode that ended the process, and continue in another process."""
        for _ in range(FRUITLESS + 1):
            # items that were not sent can't be to blame: they wait until the search is over
            queue, self._queue = self._queue, deque()
            self._search([posting.items[0] for posting in self._postings.values()], end)
            self._queue.extend(queue)
            try:
                return self._send()
            except Ended as another:
                end = another
        raise GxpoError(f"environment {self.source.name}: its processes die before anything is asked of them ({end})")

    def _search(self, suspects: Sequence[Item], end: Ended, *, acted_alone: bool = False) -> None:
        """Let suspects act again in two groups, recursively; one that ends its process alone is lost.

        again  the suspect has acted alone before
        """
        groups = (suspects[: len(suspects) // 2], suspects[len(suspects) // 2 :])
        if len(suspects) == 1:
            if end.from_outside and not acted_alone:
                groups = (suspects,)
            else:
                self._note(suspects[0], (end.kind, f"{suspects[0][0]}: {end}"))
                groups = ()
        self._replace()
        for group in groups:
            self._queue.extend(group)
            try:
                self._send()
                while self._postings or self._queue:
                    self._attend(self.patience())
            except Ended as another:
                suspects_left = [*(posting.items[0] for posting in self._postings.values()), *self._queue]
                self._queue.clear()
                self._search(suspects_left, another, acted_alone=len(suspects) == 1)

    def _replace(self) -> None:
        """Start a new process and replay all episodes in it; those whose replay fails are lost."""
        for attempt in range(FRUITLESS + 1):
            self._end_process()
            try:
                return self._replay()
            except Ended as end:
                # a kill from outside is nobody's fault the first time
                if end.from_outside and not attempt:
                    continue
                for posting in self._postings.values():
                    self._lose(posting.name, str(end))
        raise GxpoError(f"environment {self.source.name}: its processes die while episodes are gone through again")

    def _replay(self) -> None:
        """Replay all episodes, at the same time."""
        open_logs = deque(self._logs.items())
        while open_logs or self._postings:
            while open_logs and len(self._postings) < self.at_once:
                name, log = open_logs.popleft()
                self._post(name, log.items)
            for key, answers in self._ensure_worker().answers(self.patience()):
                if (posting := self._settle(key, answers)) is not None:
                    self._compare(posting, _read(posting, answers))
            time_now = time.monotonic()
            for key, posting in [(k, p) for k, p in self._postings.items() if p.deadline <= time_now]:
                del self._postings[key]
                self._ignored.add(key)
                self._lose(posting.name, f"took longer than {self.timeout:g} s an item")
        self.n_restored += len(self._logs)

    def _compare(self, posting: _Posting, answers: Sequence[Answer]) -> None:
        # the last result stands for all: it holds the state that the actions led to
        failure = next((answer for answer in answers if answer[0] != "ok"), None)
        if failure is not None:
            self._lose(posting.name, str(failure[1]))
        elif self._logs[posting.name].last_result != reproducible_part(answers[-1]):
            self._lose(posting.name, "not deterministic: the same seed and actions led elsewhere")

    def _lose(self, name: str, reason: str) -> None:
        del self._logs[name]
        self._failures[name] = ("died", f"lost with its process; going through it again: {reason}")


def _read(posting: _Posting, answers: Any) -> list[Answer]:
    """Validate the results of an episode's items, the last of which may be a failure."""
    try:
        if not 1 <= len(answers) <= len(posting.items):
            raise ValueError("another number of results")
        return [checked_answer(item[0], answer) for item, answer in zip(posting.items, answers, strict=False)]
    except Exception as error:  # it is user code that wrote it
        reason = " ".join(str(error).split())[:200]
        operation = posting.items[0][0]
        return [
            ("died", f"{operation}: its process wrote something that is no answer ({type(error).__name__}: {reason})")
        ]
