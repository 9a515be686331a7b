"""Queue of agents' calls, batched over all episodes or answered as they come, and their answers by the policy."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from gxpo.base.errors import ModelError
from gxpo.base.usercode import described
from gxpo.models.chat.call_grammar import call_grammar
from gxpo.parts.protocols import BROKEN, Completion, Request, Sampling, Session, StreamKey, TokenOptions
from gxpo.sampling.serve.history import Choice, Draft, History, Prompt
from gxpo.sampling.serve.options import check_grammar
from gxpo.sampling.serve.request import TOO_LONG, CallRequest, Refused, too_long

SETTLE = 0.004  # seconds for the other calls of an episode that makes several at once
BODY = "sk-gxpo-"
IDLE = 600.0  # seconds without a call after which a newcomer's episode is over
MOST_EPISODES = 4096  # concurrent episodes of newcomers
LONGEST_KEY = 256  # characters


@dataclass(eq=False)
class Attempt:
    """Episode of an agent.

    key      API key of its calls;   number  its index among the episodes;   cohort  whose calls it is batched with
    name     prefix of its caches in the engine;   stream  key of its random numbers
    calls    samples so far;   n_waiting  calls not answered yet
    outcome_body  body of its POST to /v1/reward;   post_error  why the latest body there can't be parsed
    record_future  done once a newcomer's episode has been recorded
    limit    limit that a call ran into: "calls" or "context"
    over     True if further calls are refused;   late  True if it kept others waiting beyond `patience`
    own_time  seconds of the agent's own work;   since  start of its current work (None: it waits for the policy)
    """

    key: str
    number: int
    name: str
    stream: StreamKey
    history: History
    calls: int = 0
    n_waiting: int = 0
    outcome_body: Any = None
    post_error: str | None = None
    cohort: int = 0
    record_future: Future[None] = field(default_factory=Future)
    limit: str | None = None
    over: bool = False
    late: bool = False
    own_time: float = 0.0
    since: float | None = None

    def own_seconds(self, time: float) -> float:
        """Seconds of the agent's own work, without its waits for the policy."""
        return self.own_time + (0.0 if self.since is None else time - self.since)


@dataclass(eq=False)
class Call:
    """Call that waits for its answer; `drafts`: its prompts in token ids, if they have been tokenised already."""

    attempt: Attempt
    request: CallRequest
    arrival_time: float
    drafts: Sequence[Draft] | None = None
    answer: Future[list[Choice]] = field(default_factory=Future)

    def resolve(self, answer: list[Choice] | Refused) -> None:
        """Set the answer, unless the client has disconnected."""
        with suppress(InvalidStateError):
            if isinstance(answer, Refused):
                self.answer.set_exception(answer)
            else:
                self.answer.set_result(answer)


class CallQueue:
    """Queue of calls, shared by the server's thread, the agents' threads and the thread that samples.

    patience    seconds that calls wait for the other episodes; 0: they are answered as they come
    most_calls  limit on an episode's samples
    newcomer    makes the attempt of an unknown key, or of one whose episode is over; None: such keys are refused. With
                newcomers, a posted reward ends the episode, and so do `IDLE` seconds without a call
    clock       returns the time in seconds

    As long as every episode makes one call at a time, the calls of all episodes of a cohort are answered in one batch,
    in whatever order they arrive: the batch does not depend on timing. An episode that keeps its cohort waiting for
    longer than `patience` is left out until its next call; `unawaited` counts the batches that went without one.
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
        self.n_unawaited = 0
        self._attempts: dict[str, Attempt] = {}
        self._pending_calls: list[Call] = []
        self._ended_attempts: list[Attempt] = []
        self._condition = threading.Condition()  # re-entrant
        self._parallel = newcomer is not None  # True once an episode has made two calls at once
        self._is_closed = False

    # ------------------------------------------------------------ episodes
    def open(self, attempt: Attempt) -> None:
        """Begin an episode."""
        with self._condition:
            attempt.since = self.clock()
            self._attempts[attempt.key] = attempt

    def end(self, attempt: Attempt) -> None:
        """End an episode: its waiting and further calls are refused."""
        with self._condition:
            if attempt.over:
                return
            attempt.over = True
            self._ended_attempts.append(attempt)
            for call in [c for c in self._pending_calls if c.attempt is attempt]:
                self._pending_calls.remove(call)
                call.resolve(_episode_over())
            self._condition.notify_all()

    def close(self) -> None:
        """End all episodes."""
        self._is_closed = True
        for attempt in list(self._attempts.values()):
            self.end(attempt)

    # ------------------------------------------------------------ for the server
    def attempt(self, key: str | None) -> Attempt:
        """Find the episode of a key; `Refused` (401) if none is running under it."""
        with self._condition:
            attempt = self._attempts.get(key or "")
            if (attempt is None or attempt.over) and key and self.newcomer is not None and not self._is_closed:
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
            raise _episode_over()
        return attempt

    def _begin_episode(self, key: str, newcomer: Callable[[str], Attempt]) -> Attempt:
        """Begin a newcomer's episode; at the limit, the one that has been idle for longest ends."""
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

    def post(self, attempt: Attempt, body: Any) -> None:
        """Record the outcome that the agent has posted."""
        if self.newcomer is not None and not attempt.history.threads:
            raise Refused(
                "no reply has been given under this key since its last episode ended: there is nothing to reward",
                status=409,
                code="no_reply",
            )
        attempt.outcome_body, attempt.post_error = body, None
        if self.newcomer is not None:
            self.end(attempt)

    def submit(self, attempt: Attempt, request: CallRequest, drafts: Sequence[Draft] | None = None) -> Call:
        """Add a call to the queue; its answer will be set on `Call.answer`."""
        with self._condition:
            if attempt.over:
                raise _episode_over()
            if attempt.calls + request.size > self.most_calls:
                attempt.limit = attempt.limit or "calls"
                raise Refused(
                    f"an episode may ask for {self.most_calls} replies, and this one has had {attempt.calls} "
                    "(rollout.max_calls)",
                    code="call_limit_exceeded",
                )
            attempt.calls += request.size
            call = Call(attempt, request, self.clock(), drafts)
            self._pending_calls.append(call)
            # The agent's clock stops here: it must not run out of time because the policy is slow.
            if attempt.since is not None:
                attempt.own_time += self.clock() - attempt.since
            attempt.since, attempt.late = None, False
            attempt.n_waiting += 1
            self._parallel |= attempt.n_waiting > 1
            self._condition.notify_all()
        return call

    def withdraw(self, call: Call) -> None:
        """Drop a waiting call whose client has disconnected."""
        with self._condition:
            if call in self._pending_calls:
                self._pending_calls.remove(call)
                call.attempt.calls -= call.request.size
                self._finish(call)

    # ------------------------------------------------------------ for the thread that samples
    def take(self, until: float | None = None) -> list[Call]:
        """Wait for the next batch of calls, in an order that does not depend on their arrival.

        Empty if an episode ended (see `collect`), or at the time `until`.
        """
        with self._condition:
            while not self._ended_attempts:
                time = self.clock()
                due_times = {
                    cohort: self._due_time(cohort, time) for cohort in {c.attempt.cohort for c in self._pending_calls}
                }
                if due_cohorts := [cohort for cohort, due_time in due_times.items() if due_time <= time]:
                    return self._take_cohort(self._longest_waiting(due_cohorts))
                if until is not None and time >= until:
                    break
                times = [*due_times.values(), *([] if until is None else [until])]
                self._condition.wait(min((t - time for t in times), default=1.0))
            return []

    def _longest_waiting(self, cohorts: Sequence[int]) -> int:
        """Return the cohort, of these, whose first call has waited for longest."""
        return next(c.attempt.cohort for c in self._pending_calls if c.attempt.cohort in cohorts)

    def _take_cohort(self, cohort: int) -> list[Call]:
        """Remove the waiting calls of a cohort; they are sorted by episode."""
        calls = [c for c in self._pending_calls if c.attempt.cohort == cohort]
        self._pending_calls = [c for c in self._pending_calls if c.attempt.cohort != cohort]
        # An episode's single call is ordered by the episode alone; only concurrent ones are sorted by their contents,
        # which takes time for long conversations.
        parallel_numbers = {c.attempt.number for c in calls if c.attempt.n_waiting > 1}
        return sorted(
            calls,
            key=lambda c: (c.attempt.number, c.request.order if c.attempt.number in parallel_numbers else ""),
        )

    def collect(self) -> list[Attempt]:
        """Return the episodes that ended since the last call."""
        with self._condition:
            if self.newcomer is not None:
                self._end_idle(self.clock())
            attempts, self._ended_attempts = self._ended_attempts, []
            return attempts

    def _end_idle(self, time: float) -> None:
        """End newcomers' episodes without a call for `IDLE` seconds, and forget those that are over."""
        for key, attempt in list(self._attempts.items()):
            if attempt.since is not None and time - attempt.since >= IDLE and not attempt.over:
                attempt.over = True
                self._ended_attempts.append(attempt)
            if attempt.over:
                del self._attempts[key]

    def _due_time(self, cohort: int, time: float) -> float:
        """Time at which to answer the waiting calls of a cohort that has some, as far as is known now."""
        calls = [c for c in self._pending_calls if c.attempt.cohort == cohort]
        # An episode that makes parallel calls sends them within milliseconds: answer them in one batch.
        settled_at = calls[-1].arrival_time + (SETTLE if self._parallel else 0.0)
        others = [
            a for a in self._attempts.values() if a.cohort == cohort and not a.over and not a.n_waiting and not a.late
        ]
        if not others or not self.patience:
            return settled_at
        if time < (patient_until := calls[0].arrival_time + self.patience):
            return patient_until
        # The patience is over: go on without the episodes that have made no call.
        for attempt in others:
            attempt.late = True
        self.n_unawaited += 1
        return settled_at

    def count_answer(self, call: Call) -> None:
        """Count a call as answered; its agent's own time starts."""
        with self._condition:
            self._finish(call)

    def _finish(self, call: Call) -> None:
        """Start the agent's clock again if none of its calls waits any more."""
        attempt = call.attempt
        attempt.n_waiting -= 1
        if attempt.n_waiting == 0:
            attempt.since = self.clock()


def new_key() -> str:
    """Random API key that nobody can guess."""
    return BODY + secrets.token_hex(16)


def _episode_over() -> Refused:
    return Refused("this episode is over", status=401, code="episode_over")


# ---------------------------------------------------------------- answers
@dataclass(frozen=True)
class _PromptSamples:
    """Prompt of a call with its sampling request and settings."""

    call: Call
    prompt: Prompt
    request: Request
    sampling: Sampling


def respond(
    queue: CallQueue, calls: Sequence[Call], session: Session, fields: Callable[[Completion], dict[str, Any]]
) -> None:
    """Sample replies to calls and answer the clients; calls with equal settings are sampled in one batch.

    fields  maps a completion to the fields of its turn in the record
    """
    # A call that is refused here was never sampled, so its samples do not count against the limit.
    jobs: list[_PromptSamples] = []
    for call in calls:
        try:
            jobs += _samples_of(call, session)
        except Refused as refused:
            if refused.code == TOO_LONG:
                call.attempt.limit = call.attempt.limit or "context"
            call.attempt.calls -= call.request.size
            queue.count_answer(call)
            call.resolve(refused)
    # Max tokens and stop texts differ between calls, and an engine takes one setting for a batch.
    completions_by_job: dict[_PromptSamples, list[Completion]] = {}
    for sampling in dict.fromkeys(job.sampling for job in jobs):
        batch = [job for job in jobs if job.sampling == sampling]
        completions_by_job |= zip(batch, session.sample([job.request for job in batch], sampling), strict=True)
    # All samples of a call are recorded and answered together: a client gets one response.
    for call in dict.fromkeys(job.call for job in jobs):
        samples = [(job.prompt, completions_by_job[job]) for job in jobs if job.call is call]
        answer = _record_samples(call, samples, fields)
        call.attempt.history.overridden += bool(call.request.overridden)
        queue.count_answer(call)
        call.resolve(answer)


def _record_samples(
    call: Call, samples: Sequence[tuple[Prompt, list[Completion]]], fields: Callable[[Completion], dict[str, Any]]
) -> list[Choice] | Refused:
    """Record the samples and convert them for the client.

    A sample that can't be parsed as a reply is recorded all the same, and fails this call alone.
    """
    choices: list[Choice] = []
    if any(c.finish == BROKEN for _, completions in samples for c in completions):
        failure = Refused("the reply's format became too complex to follow: simplify the schema or the expression")
    else:
        failure = None
    try:
        for prompt, completions in samples:
            choices += call.attempt.history.take(prompt, completions, [fields(c) for c in completions])
    except Exception as error:
        return Refused(f"the reply can't be read: {described(error)}", status=500)
    return choices if failure is None else failure


def _samples_of(call: Call, session: Session) -> list[_PromptSamples]:
    """Build the sampling requests of a call; `Refused` if a prompt fills the whole context."""
    request, attempt, limit = call.request, call.attempt, session.episode.max_context
    options = _options_of(call, session)
    prompts = attempt.history.prompts(request, call.drafts)
    if longest := max((len(p.ids) for p in prompts if len(p.ids) >= limit), default=0):
        for prompt in prompts:
            attempt.history.drop(prompt)
        raise too_long(f"{longest} tokens", limit)
    jobs = []
    for prompt in prompts:
        # The reply is limited by the client, the run, and the room that is left in the context.
        room = min(request.max_tokens or limit, session.sampling.max_new_tokens, limit - len(prompt.ids))
        stop = tuple(dict.fromkeys((*session.sampling.stop, *request.stop)))
        sampling = dataclasses.replace(session.sampling, max_new_tokens=room, stop=stop)
        streams = tuple(
            dataclasses.replace(attempt.stream, path=(*attempt.stream.path, digest), turn=1 + number)
            for digest, number in attempt.history.streams(prompt, request.n)
        )
        keep = (f"{attempt.name}/{prompt.lane}",) if request.n == 1 else ()
        job_request = Request(prompt.ids, streams, keep=keep, options=options)
        jobs.append(_PromptSamples(call, prompt, job_request, sampling))
    return jobs


def _options_of(call: Call, session: Session) -> TokenOptions | None:
    """Options of a call, with the grammar of its tools if it must call one; `Refused` where they can't be obeyed."""
    options, request = call.request.options, call.request
    if request.messages is None and options == TokenOptions(top_logprobs=1) and not session.takes_options:
        options = None  # of completions, where it also asks for the sampled token's log-prob, which all engines give
    if options is not None and not session.takes_options:
        names = [f.name for f in dataclasses.fields(options) if getattr(options, f.name) != f.default]
        raise Refused(
            "the engine of this run does not record the distribution that logit_bias, penalties, min_p, min_tokens, "
            "ignore_eos, formats and top_logprobs make: leave them out, or set sampling.engine=torch",
            param="response_format" if names == ["grammar"] else names[0],
            code="unsupported_parameter",
        )
    if options is not None and options.min_tokens and session.sampling.stop:
        raise Refused("the run has stop texts (sampling.stop), which end a reply: leave min_tokens out")
    # A reply that must be a call has no text that a format could be of.
    if (grammar := _demanded_call(call, session)) is not None:
        options = dataclasses.replace(options or TokenOptions(), grammar=grammar)
    if options is not None:
        if options.grammar is not None and (options.ignore_eos or options.min_tokens):
            raise Refused("ignore_eos and min_tokens forbid the end of a reply that must be a call: leave them out")
        try:
            session.check_options(options)
        except ModelError as error:
            raise Refused(f"the reply's format can't be followed: {error}", code="unsupported_parameter") from error
    return options


def _demanded_call(call: Call, session: Session) -> tuple[str, str] | None:
    """Grammar of the calls of tools of which a reply must be one; None: it need not, or can't be forced to."""
    request = call.request
    must_call = [tool for tool in request.tools if tool["function"]["name"] in request.must_call]
    if not must_call or not session.takes_options or find_spec("llguidance") is None:
        return None
    chat = call.attempt.history.chat_of(request)
    # A reply that begins within a thought can't be a call at once.
    if getattr(getattr(chat, "facts", None), "opens_reasoning", False):
        return None
    grammar = call_grammar(chat, must_call, several=request.several_calls)
    return None if grammar is None else check_grammar(grammar, "tools")
