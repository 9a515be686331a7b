"""Run episodes in this process, or in worker processes that can be killed and whose episodes are then restored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.base.processes import LOADING, Ended, Process, start_process
from gxpo.base.usercode import Unusable
from gxpo.environments.envs.checked import checked_about, checked_answer
from gxpo.environments.envs.host import Host
from gxpo.environments.envs.sources import EnvSource

PROGRAM = str(Path(__file__).with_name("worker.py"))
FRUITLESS = 3  # times in a row that a process may be found dead before anything is asked of it

Item = tuple[str, str, Any]  # operation, episode, payload: see Host.run
Answer = Sequence[Any]  # "ok" and a value; or what kind of failure, and a message


class InProcess:
    """Episodes in this process; exceptions are caught, but an episode that hangs is not ended."""

    def __init__(self, source: EnvSource) -> None:
        self.source = source
        self.n_restored = 0
        self.complaints: list[Answer] = []  # failures that cost no episode
        self._host: Host | None = None

    @property
    def host(self) -> Host:
        if self._host is None:
            try:
                self._host = Host(self.source.for_host())
            except Unusable as error:
                raise ConfigError(f"environment {self.source.name}: {error}") from error
        return self._host

    def about(self) -> dict[str, Any]:
        return self.host.about

    def run(self, items: Sequence[Item]) -> list[Answer]:
        return [json.loads(self.host.run(*item)) for item in items]

    def dismiss(self, name: str) -> None:
        status, message = self.run([("close", name, None)])[0]
        if status != "ok":
            self.complaints.append((status, message))

    def flush(self) -> None:
        """Nothing to flush."""

    def close(self) -> None:
        self._host = None


class Worker(Process):
    """Worker process that has loaded the environment."""

    about: dict[str, Any]

    def __init__(self, source: EnvSource) -> None:
        super().__init__(PROGRAM)
        # whatever goes wrong from here on, the process must not stay
        try:
            self.send([source.for_host()])
            status, value = self.receive(LOADING, checked_about)
            if status == "unusable":
                raise ConfigError(f"environment {source.name}: {value}")
        except (Ended, OSError) as error:
            self.close()
            raise ConfigError(f"environment {source.name}: loading it and its first step: {error}") from error
        except BaseException:
            self.close()
            raise
        self.about = value


@dataclass
class Log:
    """Log of an episode, for its replay."""

    items: list[Item]
    last_result: Any = None  # observation, state and done of the last step, which a replay has to give again


def log(logs: dict[str, Log], item: Item, answer: Answer) -> None:
    """Log an item and its answer in the `logs` of episodes by name; a failed episode has none."""
    operation, name, _ = item
    if answer[0] != "ok":
        logs.pop(name, None)
    elif operation in ("reset", "restore"):
        logs[name] = Log([item], reproducible_part(answer))
    elif operation == "step":
        logs[name].items.append(item)
        logs[name].last_result = reproducible_part(answer)


class InWorker:
    """Episodes in one worker process. If it hangs or dies, one episode is lost; the others are replayed in a new
    process, because environments are deterministic. That is checked: an episode whose last observation or state differs
    is lost, too. If the process was killed from outside, the episode that acted is replayed and acts once more; if its
    process is killed again, it is lost.

    timeout  seconds for one item: a reset, a step, and each of these in a replay
    """

    def __init__(self, source: EnvSource, timeout: float) -> None:
        self.source, self.timeout = source, timeout
        self.n_restored = 0
        self.complaints: list[Answer] = []
        self._worker: Worker | None = None
        self._logs: dict[str, Log] = {}
        self._drops: list[str] = []  # instances that the process still has to close
        self._failures: dict[str, Answer] = {}  # episodes that could not be restored, until they are requested

    def about(self) -> dict[str, Any]:
        return self._ensure_worker().about

    def lend(self) -> Worker:
        """Give the process away, before any episode has begun in it."""
        worker, self._worker = self._ensure_worker(), None
        return worker

    def run(self, items: Sequence[Item]) -> list[Answer]:
        """Results of the items, in order: those of `Host.run`, or "timeout" or "died"."""
        answers: dict[int, Answer] = {}
        failed_sends, suspect = 0, -1
        while len(answers) < len(items) or self._drops:
            worker = self._ensure_worker()
            answers |= {i: self._failures.pop(item[1]) for i, item in enumerate(items) if item[1] in self._failures}
            # a worker answers items in turn, so the first one without an answer is the one that ended it
            open_places = [i for i in range(len(items)) if i not in answers]
            drops, self._drops = self._drops, []
            messages = [*[("close", name, None) for name in drops], *[items[i] for i in open_places]]
            self._worker = None  # what is interrupted here is not used again
            try:
                worker.send(messages)
            except OSError as error:  # it died between two calls: no item is to blame
                failed_sends += 1
                exit_text = worker.exit_code()
                if failed_sends > FRUITLESS:
                    raise GxpoError(
                        f"environment {self.source.name}: its processes die before anything is asked of them "
                        f"({exit_text})"
                    ) from error
                continue
            sent_answers, end = self._exchange(worker, messages)
            if end is not None:
                # -1: it ended while it closed a dropped episode, which costs nobody anything
                ended_by = open_places[len(sent_answers) - len(drops)] if len(sent_answers) >= len(drops) else -1
                # killed from outside (out of memory, an operator): the same item gets a second try, and no third
                if not end.from_outside or ended_by == suspect >= 0:
                    sent_answers.append((end.kind, f"{messages[len(sent_answers)][0]}: {end}"))
                suspect = ended_by
            for k, (item, answer) in enumerate(zip(messages, sent_answers, strict=False)):
                if k >= len(drops):
                    answers[open_places[k - len(drops)]] = answer
                    log(self._logs, item, answer)
                elif answer[0] != "ok":
                    self.complaints.append(answer)
        return [answers[i] for i in range(len(items))]

    def _exchange(self, worker: Worker, items: Sequence[Item]) -> tuple[list[Answer], Ended | None]:
        """Receive the answers to the items sent, up to the one that ended the process, and how it ended."""
        answers: list[Answer] = []
        for operation, _, _ in items:
            try:
                answers.append(worker.receive(self.timeout, partial(checked_answer, operation)))
            except Ended as end:
                return answers, end
        self._worker = worker
        return answers, None

    def _ensure_worker(self) -> Worker:
        """Return the process, started anew with all episodes restored if there is none."""
        retried_names: set[str] = set()
        failed_sends = 0
        while self._worker is None:
            worker = start_process(lambda: Worker(self.source))
            self._drops.clear()
            try:
                if self._restore(worker, retried_names):
                    self._worker = worker
            except OSError as error:
                failed_sends += 1
                if failed_sends > FRUITLESS:
                    exit_text = worker.exit_code()
                    raise GxpoError(f"environment {self.source.name}: its process died ({exit_text})") from error
        return self._worker

    def _restore(self, worker: Worker, retried_names: set[str]) -> bool:
        """Replay all episodes; False if that ended the process, with one episode less, or one more in `tried`.

        Raises OSError if the process is gone before it receives the items.
        """
        # one message for all episodes: the process answers item by item
        logs = list(self._logs.items())
        items = [item for _, log in logs for item in log.items]
        worker.send(items)
        answers, end = self._exchange(worker, items)
        begin = 0
        for name, log in logs:
            episode_answers = answers[begin : begin + len(log.items)]
            begin += len(log.items)
            failure = next((str(answer[1]) for answer in episode_answers if answer[0] != "ok"), None)
            # fewer answers than items: the process ended in this episode, and the later ones were never reached
            if end is not None and len(episode_answers) < len(log.items):
                if failure is None and end.from_outside and name not in retried_names:
                    retried_names.add(name)
                else:
                    self._lose(name, failure or f"{log.items[len(episode_answers)][0]}: {end}")
                return False
            if failure is not None:
                self._lose(name, failure)
            elif log.last_result != reproducible_part(episode_answers[-1]):
                self._lose(name, "not deterministic: the same seed and actions led elsewhere")
        self.n_restored += len(self._logs)
        return True

    def _lose(self, name: str, reason: str) -> None:
        del self._logs[name]
        self._drops.append(name)
        self._failures[name] = ("died", f"lost with its process; going through it again: {reason}")

    def dismiss(self, name: str) -> None:
        """Drop an episode; its instance is closed with the next message."""
        self._failures.pop(name, None)
        if self._logs.pop(name, None) is not None:
            self._drops.append(name)

    def flush(self) -> None:
        """Close dropped episodes now."""
        if self._worker is not None and self._drops:
            self.run([])

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None
        self._logs, self._failures, self._drops = {}, {}, []


def reproducible_part(answer: Answer) -> Any:
    """Part of an answer that a replay must reproduce."""
    fields = answer[1]
    return None if fields is None else (fields["observation"], fields["state"], fields["done"])
