"""Pool of OpenAI-compatible servers: least-loaded dispatch, health checks, failover, weights published to all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gxpo.base import remote
from gxpo.base.errors import ConfigError, ModelError, SamplersLost
from gxpo.base.remote import LONGEST_WAIT, Line, Unanswered
from gxpo.sampling.engines.openai_reply import Reply
from gxpo.sampling.engines.publish import Publication, State, load, state
from gxpo.sampling.engines.replica import Replica, chosen, replicas

BACKOFF = 1.0  # seconds before a server that failed is asked again, doubled each time
PREFERRED = 4  # times the least load that an episode's own server may have before the episode moves
EXTENSION = (
    "weights are published to vLLM 0.32 started with VLLM_SERVER_DEV_MODE=1, PYTHONPATH on the folder "
    "gxpo/sampling/engines/in_vllm and --worker-extension-cls gxpo_vllm.WeightLoader"
)

Value = TypeVar("Value")


@dataclass(frozen=True)
class Job:
    """A request for one sample.

    tokens     that it may cost: prompt and sample
    most       bytes that the answer may have
    home       name of its episode, whose turns go to one server where possible
    processed  it needs log-probs from after temperature and top-k
    """

    body: Mapping[str, Any]
    tokens: int
    most: int
    home: str | None = None
    processed: bool = False


@dataclass(eq=False)
class Ready:
    """What the pool may do now: `weights` that a server must have to be asked, None where nobody publishes."""

    weights: Publication | None = None
    publishing: bool = False
    short: float | None = None  # since when too few servers are ready
    seconds: float = 0.0  # in which too few were, before
    change: asyncio.Event = field(default_factory=asyncio.Event)


class SamplerPool:
    """Servers that sample one policy.

    at_once       requests under way at one server
    timeout       seconds for one answer;   retries  further attempts for one request
    min_replicas  servers without which nothing is asked
    patience      seconds that fewer may be ready before `SamplersLost`
    probe         looks at how a server answers, before anything else is asked of it

    A server that fails (no answer in time, an error, an answer that breaks the protocol, other weights than it
    acknowledged) is asked nothing until it passes its checks again, the first time after a second; its requests go to
    others. Requests are answered once: what a server said under other weights than it acknowledged is thrown away and
    asked for again. Callable from any thread; all that changes, changes on one loop.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        key_from: str | None = None,
        at_once: int = 256,
        timeout: float = 600.0,
        retries: int = 3,
        min_replicas: int = 1,
        patience: float = 300.0,
        publish_timeout: float = 120.0,
        probe: Callable[[Replica], Awaitable[None]] | None = None,
    ) -> None:
        asker = "sampling.engine_options"
        if not servers or len(set(servers)) != len(servers):
            raise ConfigError(f"sampling.servers: name at least one server, each once, not {list(servers)}")
        if not 1 <= min_replicas <= len(servers):
            raise ConfigError(f"{asker}: min_replicas is {min_replicas}, and sampling.servers has {len(servers)}")
        if patience < 0 or not publish_timeout > 0:
            raise ConfigError(f"{asker}: patience must be at least 0 and publish_timeout above 0")

        def line(url: str) -> Line:
            return Line(
                url, setting="sampling.servers", asker=asker, key_from=key_from, timeout=timeout, retries=retries
            )

        self.replicas = replicas(list(servers), line)
        self.at_once, self.retries, self.min_replicas = at_once, retries, min_replicas
        self.patience, self.publish_timeout, self.probe = patience, publish_timeout, probe
        self.failures = 0  # times that a server went from up to down
        self.model = ""
        self._now = Ready()
        self._slots = asyncio.Semaphore(at_once * len(self.replicas))
        self._publishing = asyncio.Lock()
        self._homes: dict[str, Replica] = {}

    # ------------------------------------------------------------ starting
    def start(self, model: str | None) -> int | None:
        """Find the model; gives the tokens that a context may have at every server. `ModelError` where too few are
        there."""
        return remote.run(self._start(model))

    async def _start(self, model: str | None) -> int | None:
        found = dict(zip(self.replicas, await asyncio.gather(*map(self._first, self.replicas)), strict=True))
        there = {r: models for r, models in found.items() if models is not None}
        name = None
        if there:
            name, problem = chosen(model, there)
            if name is None:
                raise ModelError(problem)
        for replica in self.replicas:
            models = there.get(replica, {})
            if name in models:
                replica.up, replica.positions = True, models[name]
            elif models:
                replica.why = f"{replica.url} has no model {name!r}"
        down = [r for r in self.replicas if not r.up]
        if len(self.replicas) - len(down) < self.min_replicas:
            raise ModelError(self._few(down))
        self.model = name or ""
        for replica in down:
            self._recheck(replica)
        known = [r.positions for r in self.replicas if r.positions is not None]
        return min(known, default=None)

    async def _first(self, replica: Replica) -> dict[str, int | None] | None:
        wait = BACKOFF
        for attempt in range(self.retries + 1):
            try:
                return await replica.models()
            except Unanswered as error:
                replica.why = str(error)
                if not error.again and len(self.replicas) == 1:
                    raise ModelError(str(error)) from error
                if not error.again or attempt == self.retries:
                    break
                await remote.pause(min(LONGEST_WAIT, wait))
                wait *= 2
        return None

    @property
    def down(self) -> list[str]:
        """What is wrong with the servers that are not asked."""
        return [r.why for r in self.replicas if not r.up]

    def _few(self, down: Sequence[Replica]) -> str:
        known = "; ".join(r.why for r in down if r.why)
        if len(self.replicas) == 1:
            return known
        ready = len(self.replicas) - len(down)
        return f"{ready} of {len(self.replicas)} servers can sample, min_replicas is {self.min_replicas}: {known}"

    # ------------------------------------------------------------ requests
    def complete(self, jobs: Sequence[Job], read: Callable[[int, Reply, int], Value]) -> list[Value]:
        """What `read` makes of each answer: of the job's index, the answer, and the version that sampled it.

        A ValueError of `read` says what is wrong with the answer, in words after the server's name. `ModelError` for a
        request that no server answers, `SamplersLost` where too few are there.
        """
        return remote.run(self._complete(jobs, read))

    async def _complete(self, jobs: Sequence[Job], read: Callable[[int, Reply, int], Value]) -> list[Value]:
        done: dict[int, Value] = {}
        left, again = list(range(len(jobs))), 0
        while left:
            asked = [asyncio.ensure_future(self._one(jobs[i], i, read)) for i in left]
            try:
                found = await asyncio.gather(*asked)
            finally:
                for task in asked:
                    task.cancel()
            believed = await self._believed({(replica, held) for replica, held, _ in found})
            for i, (replica, held, value) in zip(left, found, strict=True):
                if believed[replica, held]:
                    done[i] = value
            again += any(i not in done for i in left)
            if again > self.retries:
                raise ModelError(f"servers change their weights while they sample (tried {again} times): {self.down}")
            left = [i for i in left if i not in done]
        return [done[i] for i in range(len(jobs))]

    async def _believed(self, leases: set[tuple[Replica, State | None]]) -> dict[tuple[Replica, State | None], bool]:
        """Whether each server still has what it had acknowledged when it was asked."""

        async def one(replica: Replica, held: State | None) -> bool:
            if held is None:
                return True
            try:
                now = await state(replica.root)
            except Unanswered as error:
                self._fail(replica, str(error))
                return False
            if now != held:
                restarted = "was restarted" if now.boot != held.boot else "was given other weights"
                self._fail(replica, f"{replica.url} {restarted} while it sampled")
            return now == held

        listed = list(leases)
        return dict(zip(listed, await asyncio.gather(*(one(*lease) for lease in listed)), strict=True))

    async def _one(
        self, job: Job, i: int, read: Callable[[int, Reply, int], Value]
    ) -> tuple[Replica, State | None, Value]:
        failures, refused = 0, set[Replica]()
        async with self._slots:
            while True:
                replica = await self._admit(job)
                held, weights = replica.holds, self._now.weights
                replica.begin(job.tokens)
                try:
                    await self._probed(replica)
                    if job.processed and not replica.processed:
                        raise ModelError(
                            f"{replica.url} gives log-probs from before temperature, top_k and top_p: start it with "
                            "--logprobs-mode processed_logprobs (vLLM), or sample at temperature 1 without top_k and "
                            "top_p"
                        )
                    body = {"model": self.model, **job.body}
                    if weights is not None:
                        body["cache_salt"] = weights.stamp
                    said = await replica.line.once("POST", "/completions", body, Reply, job.most)
                    return replica, held, read(i, said, 0 if weights is None else weights.version)
                except Unanswered as error:
                    failures, final, why = failures + 1, not error.again, str(error)
                except ValueError as error:
                    failures, final, why = failures + 1, True, f"{replica.url} {error}"
                finally:
                    replica.end(job.tokens)
                    self._changed()
                if final:
                    refused.add(replica)
                if len(refused) == len(self.replicas):
                    raise ModelError(why)
                if failures >= self.retries + len(self.replicas):
                    raise SamplersLost(why if failures == 1 else f"{why} (tried {failures} times)")
                self._fail(replica, why)

    async def _probed(self, replica: Replica) -> None:
        """Returns when somebody has looked at how the server answers."""
        if self.probe is None:
            return
        if replica.probed is None or (replica.probed.done() and replica.probed.exception() is not None):
            replica.probed = asyncio.ensure_future(self.probe(replica))
            replica.probed.add_done_callback(lambda f: f.cancelled() or f.exception())  # seen, whoever waits
        await asyncio.shield(replica.probed)

    async def _admit(self, job: Job) -> Replica:
        """The server for a request: its episode's own, else the one with the fewest tokens under way."""
        while True:
            ready = self._ready()
            if len(ready) >= self.min_replicas and (free := [r for r in ready if r.requests < self.at_once]):
                least = min(free, key=lambda r: (r.tokens, r.requests, r.number))
                own = self._homes.get(job.home) if job.home is not None else None
                if own in free and own is not None and own.tokens <= PREFERRED * (least.tokens + job.tokens):
                    return own
                if job.home is not None:
                    self._homes[job.home] = least
                return least
            await self._until_change(len(ready) < self.min_replicas)

    def _ready(self) -> list[Replica]:
        weights = self._now.weights
        return [r for r in self.replicas if r.up and (weights is None or (r.holds and r.holds.stamp == weights.stamp))]

    async def _until_change(self, short: bool) -> None:
        now, left = self._now, None
        self._count()
        if short and now.short is not None:
            left = self.patience - (asyncio.get_running_loop().time() - now.short)
            if left <= 0:
                ready = self._ready()
                raise SamplersLost(self._few([r for r in self.replicas if r not in ready]))
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(now.change.wait(), left)

    def _count(self) -> None:
        """Whether too few servers are ready, and for how long they have been."""
        now, clock = self._now, asyncio.get_running_loop().time()
        short = len(self._ready()) < self.min_replicas and not now.publishing
        if short and now.short is None:
            now.short = clock
        elif not short and now.short is not None:
            now.seconds, now.short = now.seconds + clock - now.short, None

    def _changed(self) -> None:
        """Wakes what waits for a server."""
        self._count()
        self._now.change.set()
        self._now.change = asyncio.Event()

    @property
    def waited(self) -> float:
        """Seconds in which too few servers were ready."""
        now = self._now
        return now.seconds + (0.0 if now.short is None else max(0.0, remote.clock() - now.short))

    # ------------------------------------------------------------ health
    def _fail(self, replica: Replica, why: str) -> None:
        """The server is asked nothing until it is well."""
        replica.why = why
        if replica.up:
            replica.up, replica.holds, replica.probed = False, None, None
            self.failures += 1
            self._recheck(replica)
            self._changed()

    def _recheck(self, replica: Replica) -> None:
        if replica.checking is None or replica.checking.done():
            replica.checking = asyncio.ensure_future(self._until_well(replica))

    async def _until_well(self, replica: Replica) -> None:
        wait = BACKOFF
        while not replica.up:
            await remote.pause(min(LONGEST_WAIT, wait))
            wait *= 2
            try:
                models = await replica.models()
                if self.model not in models:
                    raise Unanswered("nonsense", f"{replica.url} has no model {self.model!r}")
                while (weights := self._now.weights) is not None and not _has(replica, weights):
                    await self._give(replica, weights)
            except Unanswered as error:
                replica.why = str(error)
                continue
            replica.up = True
            self._changed()

    # ------------------------------------------------------------ weights
    def publish(self, weights: Publication) -> None:
        """Give the weights to all servers that are up; from here on none is asked that has not acknowledged them.

        A server that fails to load them twice counts as failed. `SamplersLost` where fewer than `min_replicas` are left
        because of that.
        """
        remote.run(self._publish(weights))

    async def _publish(self, weights: Publication) -> None:
        async with self._publishing:
            self._now.weights, self._now.publishing = weights, True
            try:
                up = [r for r in self.replicas if r.up]
                lost = [r for r in await asyncio.gather(*(self._given(r, weights) for r in up)) if r is not None]
                if lost and len(up) - len(lost) < self.min_replicas:
                    raise SamplersLost(
                        f"version {weights.version} of the weights was not taken by {len(lost)} of "
                        f"{len(self.replicas)} servers: {lost[0].why}. {EXTENSION}"
                    )
            finally:
                self._now.publishing = False
                self._changed()

    async def _given(self, replica: Replica, weights: Publication) -> Replica | None:
        """None where the server has the weights, else itself, down."""
        why = ""
        for _ in range(2):
            try:
                await self._give(replica, weights)
            except Unanswered as error:
                why = str(error)
            else:
                return None
        self._fail(replica, why)
        return replica

    async def _give(self, replica: Replica, weights: Publication) -> None:
        """Load the weights into a server once nothing is under way there; it has none until it acknowledges them."""
        replica.holds = replica.probed = None
        await replica.drained()
        replica.holds = await load(replica.root, weights, self.publish_timeout)

    # ------------------------------------------------------------ ending
    def forget(self, names: Sequence[str] | None) -> None:
        """Episodes that are over need no server of their own; None: all."""
        for name in list(self._homes) if names is None else names:
            self._homes.pop(name, None)

    def close(self) -> None:
        """Stop checking, and close the connections; the servers keep running."""

        async def stop() -> None:
            for replica in self.replicas:
                if replica.checking is not None:
                    replica.checking.cancel()

        remote.run(stop())
        for replica in self.replicas:
            replica.close()


def _has(replica: Replica, weights: Publication) -> bool:
    return replica.holds is not None and replica.holds.stamp == weights.stamp
