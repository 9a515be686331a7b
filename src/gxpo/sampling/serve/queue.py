"""Queue of calls that wait for the policy: batched over all episodes, or answered as they come."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gxpo.parts.protocols import StreamKey
from gxpo.sampling.serve.history import Choice, Draft, History
from gxpo.sampling.serve.refusal import Refused
from gxpo.sampling.serve.request import Asked

SETTLE = 0.004  # seconds for the other calls of an episode that makes several at once
BODY = "sk-gxpo-"
IDLE = 600.0  # seconds without a call after which an episode of a newcomer is over
MOST_EPISODES = 4096  # of newcomers, under way at once
LONGEST_KEY = 256  # characters


@dataclass(eq=False)
class Attempt:
    """One episode of an agent.

    key      what its calls are told by; `number`, its place among the episodes
    stream   of its random numbers; `name`, of what the engine keeps
    calls    samples so far; `waiting`, calls that are not answered yet
    posted   what was sent to /v1/reward; `post_error`, why the last that was sent there can't be read
    record_future  done once a newcomer's episode has been written down
    limit    the limit that a call ran into: "calls" or "context"
    spent    seconds of the agent's own, `since` when it began to work (None: it waits for the policy)
    """

    key: str
    number: int
    name: str
    stream: StreamKey
    history: History
    calls: int = 0
    waiting: int = 0
    posted: Any = None
    post_error: str | None = None
    record_future: Future[None] = field(default_factory=Future)
    limit: str | None = None
    over: bool = False
    late: bool = False
    spent: float = 0.0
    since: float | None = None

    def own_seconds(self, now: float) -> float:
        """The time that the agent has taken, without what it has waited for the policy."""
        return self.spent + (0.0 if self.since is None else now - self.since)


@dataclass(eq=False)
class Call:
    """A call that waits for its answer. drafts: its prompts in token ids, where they have been made already."""

    attempt: Attempt
    asked: Asked
    came: float
    drafts: Sequence[Draft] | None = None
    answer: Future[list[Choice]] = field(default_factory=Future)

    def give(self, answer: list[Choice] | Refused) -> None:
        """The answer, unless the client has gone."""
        with suppress(InvalidStateError):
            if isinstance(answer, Refused):
                self.answer.set_exception(answer)
            else:
                self.answer.set_result(answer)


class CallQueue:
    """Where calls wait. Used by the server's thread and the agents', and by the one that samples.

    patience    seconds that calls wait for the other episodes; 0: they are answered as they come
    most_calls  samples that an episode may ask for
    newcomer    makes the attempt of a key that is not known, or whose episode is over; None: it is refused. Then a
                reward that is posted ends its episode, and so do `IDLE` seconds without a call
    clock       seconds

    As long as every episode asks once at a time, all of them are answered together, whichever was first: what is
    sampled together does not depend on the clock. An episode that keeps the others waiting for longer than `patience`
    is not waited for until it asks again; `unawaited` counts the batches that went without one.
    """

    def __init__(
        self,
        *,
        patience: float,
        most_calls: int,
        newcomer: Callable[[str], Attempt] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.patience, self.most_calls, self.newcomer = patience, most_calls, newcomer
        self.unawaited = 0
        self._attempts: dict[str, Attempt] = {}
        self._pending: list[Call] = []
        self._ended: list[Attempt] = []
        self._changed = threading.Condition()  # re-entrant
        self._parallel = newcomer is not None  # an episode has made two calls at once
        self._closed = False

    # ------------------------------------------------------------ of the agents
    def open(self, attempt: Attempt) -> None:
        """The episode begins."""
        with self._changed:
            attempt.since = self.clock()
            self._attempts[attempt.key] = attempt

    def end(self, attempt: Attempt) -> None:
        """The episode is over: its further calls are refused."""
        with self._changed:
            if attempt.over:
                return
            attempt.over = True
            self._ended.append(attempt)
            for call in [c for c in self._pending if c.attempt is attempt]:
                self._pending.remove(call)
                call.give(_over())
            self._changed.notify_all()

    def close(self) -> None:
        """All episodes are over."""
        self._closed = True
        for attempt in list(self._attempts.values()):
            self.end(attempt)

    # ------------------------------------------------------------ of the server
    def attempt(self, key: str | None) -> Attempt:
        """The episode of a key; `Refused` (401) where there is none under way."""
        with self._changed:
            attempt = self._attempts.get(key or "")
            if (attempt is None or attempt.over) and key and self.newcomer is not None and not self._closed:
                attempt = self._begin_episode(key, self.newcomer)
            if self.newcomer is not None and attempt is not None and attempt.since is not None:
                attempt.since = self.clock()
        if attempt is None:
            raise Refused(
                "no episode has this API key: use the one that the agent was given (OPENAI_API_KEY)",
                status=401,
                code="invalid_api_key",
            )
        if attempt.over:
            raise _over()
        return attempt

    def _begin_episode(self, key: str, newcomer: Callable[[str], Attempt]) -> Attempt:
        if len(key) > LONGEST_KEY or not key.isprintable():
            raise Refused(
                f"an API key is a text of at most {LONGEST_KEY} printable characters",
                status=401,
                code="invalid_api_key",
            )
        if len(self._attempts) >= MOST_EPISODES:
            idle = [a for a in self._attempts.values() if a.since is not None or a.over]
            if not idle:
                raise Refused(f"{MOST_EPISODES} episodes wait for replies: try again in a second", status=429)
            oldest = min(idle, key=lambda a: a.since or 0.0)
            self.end(oldest)
            del self._attempts[oldest.key]
        attempt = self._attempts[key] = newcomer(key)
        attempt.since = self.clock()
        return attempt

    def post(self, attempt: Attempt, posted: Any) -> None:
        """Note down the outcome that the agent has posted."""
        if self.newcomer is not None and not attempt.history.threads:
            raise Refused(
                "no reply has been given under this key since its last episode ended: there is nothing to reward",
                status=409,
                code="no_reply",
            )
        attempt.posted, attempt.post_error = posted, None
        if self.newcomer is not None:
            self.end(attempt)

    def submit(self, attempt: Attempt, asked: Asked, drafts: Sequence[Draft] | None = None) -> Call:
        """The call waits; its answer comes to `Call.answer`."""
        with self._changed:
            if attempt.over:
                raise _over()
            if attempt.calls + asked.size > self.most_calls:
                attempt.limit = attempt.limit or "calls"
                raise Refused(
                    f"an episode may ask for {self.most_calls} replies, and this one has had {attempt.calls} "
                    "(rollout.max_calls)",
                    code="call_limit_exceeded",
                )
            attempt.calls += asked.size
            call = Call(attempt, asked, self.clock(), drafts)
            self._pending.append(call)
            if attempt.since is not None:
                attempt.spent += self.clock() - attempt.since
            attempt.since, attempt.late = None, False
            attempt.waiting += 1
            self._parallel |= attempt.waiting > 1
            self._changed.notify_all()
        return call

    def withdraw(self, call: Call) -> None:
        """The client has gone away: where the call still waits, it is dropped."""
        with self._changed:
            if call in self._pending:
                self._pending.remove(call)
                call.attempt.calls -= call.asked.size
                self._answered(call)

    # ------------------------------------------------------------ of the one that samples
    def take(self, until: float | None = None) -> list[Call]:
        """The calls to answer now, in an order that does not depend on when they came. None of them: an episode is
        over (`collect`), or it is `until` (of `clock`)."""
        with self._changed:
            while not self._ended:
                now = self.clock()
                due = self._due(now)
                if due is not None and due <= now:
                    calls, self._pending = self._pending, []
                    several = {c.attempt.number for c in calls if c.attempt.waiting > 1}
                    return sorted(
                        calls, key=lambda c: (c.attempt.number, c.asked.order if c.attempt.number in several else "")
                    )
                if until is not None and now >= until:
                    break
                self._changed.wait(min((t - now for t in (due, until) if t is not None), default=1.0))
            return []

    def collect(self) -> list[Attempt]:
        """The episodes that are over since this was last asked."""
        with self._changed:
            if self.newcomer is not None:
                self._end_idle(self.clock())
            ended, self._ended = self._ended, []
            return ended

    def _end_idle(self, now: float) -> None:
        """End the episodes of newcomers that have not called for long, and forget those that are over."""
        for key, attempt in list(self._attempts.items()):
            if attempt.since is not None and now - attempt.since >= IDLE and not attempt.over:
                attempt.over = True
                self._ended.append(attempt)
            if attempt.over:
                del self._attempts[key]

    def _due(self, now: float) -> float | None:
        """When the calls that wait are to be answered, as far as is known now; None: none wait."""
        if not self._pending:
            return None
        settled = self._pending[-1].came + (SETTLE if self._parallel else 0.0)
        others = [a for a in self._attempts.values() if not a.over and not a.waiting and not a.late]
        if not others or not self.patience:
            return settled
        if now < (patient := self._pending[0].came + self.patience):
            return patient
        for attempt in others:
            attempt.late = True
        self.unawaited += 1
        return settled

    def answered(self, call: Call) -> None:
        """The answer has been given."""
        with self._changed:
            self._answered(call)

    def _answered(self, call: Call) -> None:
        attempt = call.attempt
        attempt.waiting -= 1
        if attempt.waiting == 0:
            attempt.since = self.clock()


def new_key() -> str:
    """A key that nobody can guess."""
    return BODY + secrets.token_hex(16)


def _over() -> Refused:
    return Refused("this episode is over", status=401, code="episode_over")
