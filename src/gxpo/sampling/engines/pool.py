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
from gxpo.sampling.engines.replica import Replica, common_model, replicas
from gxpo.sampling.engines.weight_transfer import Publication, WorkerState, load_publication, server_state

BACKOFF = 1.0  # seconds before a failed server is checked again, doubled each time
PREFERRED = 4  # multiple of the least load at which an episode moves away from its own server
EXTENSION = (
    "weights are published to vLLM 0.32 started with VLLM_SERVER_DEV_MODE=1, PYTHONPATH on the folder "
    "gxpo/sampling/engines/in_vllm and --worker-extension-cls gxpo_vllm.WeightLoader"
)

Value = TypeVar("Value")


@dataclass(frozen=True)
class Job:
    """Request for one sample.

    tokens     upper bound of its cost: prompt and sample
    max_bytes  limit on the response
    home       name of its episode, whose turns go to one server where possible (for its prefix cache)
    needs_processed  True if it needs log-probs after temperature and top-k
    """

    body: Mapping[str, Any]
    tokens: int
    max_bytes: int
    home: str | None = None
    needs_processed: bool = False


@dataclass(eq=False)
class _PoolState:
    """Mutable state of the pool: `weights` that a server must have loaded (None: nothing is published), shortages."""

    weights: Publication | None = None
    publishing: bool = False
    short_since: float | None = None  # start of the current shortage of servers
    short_seconds: float = 0.0  # total of the shortages before it
    change: asyncio.Event = field(default_factory=asyncio.Event)


class SamplerPool:
    """Pool of servers that sample one policy.

    at_once       concurrent requests at one server
    timeout       seconds for one response;   retries  further attempts for one request
    min_replicas  number of ready servers below which no request is sent
    patience      seconds with fewer ready servers before `SamplersLost`
    probe         checks how a server answers, before its first request

    A server that fails (timeout, error, response that breaks the protocol, other weights than it acknowledged) gets no
    requests until it passes its health checks again, tried first after a second; its requests go to others. Each
    request has one answer: a response sampled under other weights than acknowledged is discarded and requested again.
    Callable from any thread; state changes on one event loop only.
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

        # The slots bound open requests over all servers; `_acquire` bounds those at each one.
        self.replicas = replicas(list(servers), line)
        self.at_once, self.retries, self.min_replicas = at_once, retries, min_replicas
        self.patience, self.publish_timeout, self.probe = patience, publish_timeout, probe
        self.failures = 0  # times that a server went from up to down
        self.model = ""
        self._state = _PoolState()
        self._slots = asyncio.Semaphore(at_once * len(self.replicas))
        self._publishing = asyncio.Lock()
        self._homes: dict[str, Replica] = {}

    # ------------------------------------------------------------ starting
    def start(self, model: str | None) -> int | None:
        """Find the model; return the longest context that every server accepts. `ModelError` if too few servers
        respond."""
        return remote.run(self._start(model))

    async def _start(self, model: str | None) -> int | None:
        models_by_replica = dict(
            zip(self.replicas, await asyncio.gather(*map(self._models_with_retries, self.replicas)), strict=True)
        )
        available = {r: models for r, models in models_by_replica.items() if models is not None}
        # All servers must serve one model: a pool of different ones would sample different policies.
        name = None
        if available:
            name, problem = common_model(model, available)
            if name is None:
                raise ModelError(problem)
        for replica in self.replicas:
            models = available.get(replica, {})
            if name in models:
                replica.up, replica.positions = True, models[name]
            elif models:
                replica.problem = f"{replica.url} has no model {name!r}"
        down = [r for r in self.replicas if not r.up]
        if len(self.replicas) - len(down) < self.min_replicas:
            raise ModelError(self._shortage_message(down))
        self.model = name or ""
        # Enough servers are up: the others are checked again in the background and join when they are healthy.
        for replica in down:
            self._start_recheck(replica)
        limits = [r.positions for r in self.replicas if r.positions is not None]
        return min(limits, default=None)

    async def _models_with_retries(self, replica: Replica) -> dict[str, int | None] | None:
        """Names and context limits of a server's models; None if it does not answer within the retries."""
        wait = BACKOFF
        for attempt in range(self.retries + 1):
            try:
                return await replica.models()
            except Unanswered as error:
                replica.problem = str(error)
                if not error.again and len(self.replicas) == 1:
                    raise ModelError(str(error)) from error
                if not error.again or attempt == self.retries:
                    break
                await remote.pause(min(LONGEST_WAIT, wait))
                wait *= 2
        return None

    @property
    def down(self) -> list[str]:
        """Problems of the servers that are down, one line each."""
        return [r.problem for r in self.replicas if not r.up]

    def _shortage_message(self, down: Sequence[Replica]) -> str:
        reasons = "; ".join(r.problem for r in down if r.problem)
        if len(self.replicas) == 1:
            return reasons
        n_ready = len(self.replicas) - len(down)
        return f"{n_ready} of {len(self.replicas)} servers can sample, min_replicas is {self.min_replicas}: {reasons}"

    # ------------------------------------------------------------ requests
    def complete(self, jobs: Sequence[Job], read: Callable[[int, Reply, int], Value]) -> list[Value]:
        """Send all jobs; return `read(index, reply, version)` of each one's response.

        `read` raises ValueError for an invalid response, in words that continue the server's name. `ModelError` for a
        request that no server answers, `SamplersLost` if too few servers are ready.
        """
        return remote.run(self._complete(jobs, read))

    async def _complete(self, jobs: Sequence[Job], read: Callable[[int, Reply, int], Value]) -> list[Value]:
        values: dict[int, Value] = {}
        open_jobs, n_repeats = list(range(len(jobs))), 0
        while open_jobs:
            attempts = [asyncio.ensure_future(self._complete_one(jobs[i], i, read)) for i in open_jobs]
            try:
                results = await asyncio.gather(*attempts)
            finally:
                for task in attempts:
                    task.cancel()
            # A server that was restarted or updated meanwhile sampled under unknown weights: its values are discarded
            # and the jobs repeated.
            is_valid = await self._check_leases({(replica, state_before) for replica, state_before, _ in results})
            for i, (replica, state_before, value) in zip(open_jobs, results, strict=True):
                if is_valid[replica, state_before]:
                    values[i] = value
            n_repeats += any(i not in values for i in open_jobs)
            if n_repeats > self.retries:
                raise ModelError(
                    f"servers change their weights while they sample (tried {n_repeats} times): {self.down}"
                )
            open_jobs = [i for i in open_jobs if i not in values]
        return [values[i] for i in range(len(jobs))]

    async def _check_leases(
        self, leases: set[tuple[Replica, WorkerState | None]]
    ) -> dict[tuple[Replica, WorkerState | None], bool]:
        """Check that each server still holds the weights that it had acknowledged when the request was sent."""

        async def is_unchanged(replica: Replica, state_before: WorkerState | None) -> bool:
            if state_before is None:
                return True
            try:
                state_after = await server_state(replica.root)
            except Unanswered as error:
                self._mark_down(replica, str(error))
                return False
            if state_after != state_before:
                cause = "was restarted" if state_after.boot != state_before.boot else "was given other weights"
                self._mark_down(replica, f"{replica.url} {cause} while it sampled")
            return state_after == state_before

        replicas = list(leases)
        return dict(zip(replicas, await asyncio.gather(*(is_unchanged(*lease) for lease in replicas)), strict=True))

    async def _complete_one(
        self, job: Job, i: int, read: Callable[[int, Reply, int], Value]
    ) -> tuple[Replica, WorkerState | None, Value]:
        """Send a job to one server after another until a response is valid; return server, its weights, and value."""
        failures, rejected_by = 0, set[Replica]()
        async with self._slots:
            while True:
                replica = await self._acquire(job)
                state_before, weights = replica.worker_state, self._state.weights
                replica.begin(job.tokens)
                try:
                    await self._ensure_probed(replica)
                    if job.needs_processed and not replica.has_processed_logprobs:
                        raise ModelError(
                            f"{replica.url} gives log-probs from before temperature, top_k and top_p: start it with "
                            "--logprobs-mode processed_logprobs (vLLM), or sample at temperature 1 without top_k and "
                            "top_p"
                        )
                    body = {"model": self.model, **job.body}
                    if weights is not None:
                        # Prefixes cached under other weights must not be reused.
                        body["cache_salt"] = weights.stamp
                    reply = await replica.line.once("POST", "/completions", body, Reply, job.max_bytes)
                    return replica, state_before, read(i, reply, 0 if weights is None else weights.version)
                except Unanswered as error:
                    failures, final, problem = failures + 1, not error.again, str(error)
                except ValueError as error:
                    failures, final, problem = failures + 1, True, f"{replica.url} {error}"
                finally:
                    replica.end(job.tokens)
                    self._notify_waiters()
                # Rejected by every server, the request is at fault; other failures are a server's, which may recover.
                if final:
                    rejected_by.add(replica)
                if len(rejected_by) == len(self.replicas):
                    raise ModelError(problem)
                if failures >= self.retries + len(self.replicas):
                    raise SamplersLost(problem if failures == 1 else f"{problem} (tried {failures} times)")
                self._mark_down(replica, problem)

    async def _ensure_probed(self, replica: Replica) -> None:
        """Wait until the server has been probed, once for all requests; a failed probe is repeated."""
        if self.probe is None:
            return
        if replica.probe is None or (replica.probe.done() and replica.probe.exception() is not None):
            replica.probe = asyncio.ensure_future(self.probe(replica))
            # Retrieves the exception even if no request waits any more, or asyncio would log it as never retrieved.
            replica.probe.add_done_callback(lambda f: f.cancelled() or f.exception())
        await asyncio.shield(replica.probe)

    async def _acquire(self, job: Job) -> Replica:
        """Wait for a server with room: the episode's own, else the one with the fewest tokens in flight."""
        while True:
            ready_replicas = self._ready_replicas()
            if len(ready_replicas) >= self.min_replicas and (
                free := [r for r in ready_replicas if r.requests < self.at_once]
            ):
                # An episode stays with the server that has its earlier turns in the prefix cache, unless that one is
                # far busier than the others.
                least_loaded = min(free, key=lambda r: (r.tokens, r.requests, r.number))
                episode_home = self._homes.get(job.home) if job.home is not None else None
                if (
                    episode_home in free
                    and episode_home is not None
                    and episode_home.tokens <= PREFERRED * (least_loaded.tokens + job.tokens)
                ):
                    return episode_home
                if job.home is not None:
                    self._homes[job.home] = least_loaded
                return least_loaded
            await self._wait_for_change(len(ready_replicas) < self.min_replicas)

    def _ready_replicas(self) -> list[Replica]:
        weights = self._state.weights
        return [
            r
            for r in self.replicas
            if r.up and (weights is None or (r.worker_state and r.worker_state.stamp == weights.stamp))
        ]

    async def _wait_for_change(self, short: bool) -> None:
        """Wait until a server changes; `SamplersLost` once a shortage has lasted for `patience` seconds."""
        state, patience_left = self._state, None
        self._track_shortage()
        if short and state.short_since is not None:
            patience_left = self.patience - (asyncio.get_running_loop().time() - state.short_since)
            if patience_left <= 0:
                ready_replicas = self._ready_replicas()
                raise SamplersLost(self._shortage_message([r for r in self.replicas if r not in ready_replicas]))
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(state.change.wait(), patience_left)

    def _track_shortage(self) -> None:
        """Start or end the clock of a shortage; the time of a publication is none."""
        state, time = self._state, asyncio.get_running_loop().time()
        short = len(self._ready_replicas()) < self.min_replicas and not state.publishing
        if short and state.short_since is None:
            state.short_since = time
        elif not short and state.short_since is not None:
            state.short_seconds, state.short_since = state.short_seconds + time - state.short_since, None

    def _notify_waiters(self) -> None:
        """Wake the requests that wait for a server."""
        self._track_shortage()
        self._state.change.set()
        self._state.change = asyncio.Event()

    @property
    def seconds_waited(self) -> float:
        """Total seconds with too few ready servers."""
        state = self._state
        return state.short_seconds + (
            0.0 if state.short_since is None else max(0.0, remote.clock() - state.short_since)
        )

    # ------------------------------------------------------------ health
    def _mark_down(self, replica: Replica, reason: str) -> None:
        """Send the server no more requests until it is healthy again."""
        replica.problem = reason
        if replica.up:
            replica.up, replica.worker_state, replica.probe = False, None, None
            self.failures += 1
            self._start_recheck(replica)
            self._notify_waiters()

    def _start_recheck(self, replica: Replica) -> None:
        if replica.recheck is None or replica.recheck.done():
            replica.recheck = asyncio.ensure_future(self._check_until_healthy(replica))

    async def _check_until_healthy(self, replica: Replica) -> None:
        """Check a server with growing pauses until it is healthy and has the current weights."""
        wait = BACKOFF
        while not replica.up:
            await remote.pause(min(LONGEST_WAIT, wait))
            wait *= 2
            try:
                models = await replica.models()
                if self.model not in models:
                    raise Unanswered("nonsense", f"{replica.url} has no model {self.model!r}")
                # A publication may overtake this one while the server loads, hence a loop.
                while (weights := self._state.weights) is not None and not _has_weights(replica, weights):
                    await self._load_weights(replica, weights)
            except Unanswered as error:
                replica.problem = str(error)
                continue
            replica.up = True
            self._notify_waiters()

    # ------------------------------------------------------------ weights
    def publish(self, weights: Publication) -> None:
        """Load the weights into all servers that are up; from now on only servers that acknowledged them get requests.

        A server that fails to load them twice counts as failed. `SamplersLost` if that leaves fewer than
        `min_replicas`.
        """
        remote.run(self._publish(weights))

    async def _publish(self, weights: Publication) -> None:
        async with self._publishing:
            self._state.weights, self._state.publishing = weights, True
            try:
                up = [r for r in self.replicas if r.up]
                failed_replicas = [
                    r for r in await asyncio.gather(*(self._try_load_weights(r, weights) for r in up)) if r is not None
                ]
                if failed_replicas and len(up) - len(failed_replicas) < self.min_replicas:
                    raise SamplersLost(
                        f"version {weights.version} of the weights was not loaded by {len(failed_replicas)} of "
                        f"{len(self.replicas)} servers: {failed_replicas[0].problem}. {EXTENSION}"
                    )
            finally:
                self._state.publishing = False
                self._notify_waiters()

    async def _try_load_weights(self, replica: Replica, weights: Publication) -> Replica | None:
        """Load the weights, twice if need be; return None, or the server, marked down, if it failed."""
        problem = ""
        for _ in range(2):
            try:
                await self._load_weights(replica, weights)
            except Unanswered as error:
                problem = str(error)
            else:
                return None
        self._mark_down(replica, problem)
        return replica

    async def _load_weights(self, replica: Replica, weights: Publication) -> None:
        """Load the weights into a server once it is idle; until it acknowledges them it counts as having none."""
        replica.worker_state = replica.probe = None
        await replica.wait_until_idle()
        replica.worker_state = await load_publication(replica.root, weights, self.publish_timeout)

    # ------------------------------------------------------------ ending
    def forget(self, names: Sequence[str] | None) -> None:
        """Forget the servers of episodes that are over (None: of all)."""
        for name in list(self._homes) if names is None else names:
            self._homes.pop(name, None)

    def close(self) -> None:
        """Stop health checks and close the connections; the servers keep running."""

        async def stop() -> None:
            for replica in self.replicas:
                if replica.recheck is not None:
                    replica.recheck.cancel()

        remote.run(stop())
        for replica in self.replicas:
            replica.close()


def _has_weights(replica: Replica, weights: Publication) -> bool:
    return replica.worker_state is not None and replica.worker_state.stamp == weights.stamp
