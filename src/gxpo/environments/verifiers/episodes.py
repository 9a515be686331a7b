"""Play tasks of verifiers by the library's own code, against the endpoint of `rollout: agent`.

Each environment has an event loop in a thread of its own for the whole run, with the servers that it shares among its
rollouts. Its clients call one address, and each call says by a header, the id of its trace, which rollout it is of: so
it is passed on under the key of the episode that the library plays for.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import math
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from gxpo.base.errors import GxpoError, need
from gxpo.base.usercode import one_line
from gxpo.environments.verifiers.world import LoadedEnv, load
from gxpo.parts.protocols import Task

INFO = "verifiers"  # key of a task's info: {"env": Spec.text(), "task": its number}
POLICY = "policy"  # name of the model
NO_KEY = "GXPO_NO_API_KEY"  # environment variable of no key: calls are passed on under the episode's
TRACE_HEADER = "X-Session-ID"  # in which the library's clients say which trace a call is of
LARGEST_BODY = 64 << 20
JOIN_SECONDS = 10.0


class EpisodeError(GxpoError):
    """An episode that broke: its environment, a tool, a judge or its scoring."""


async def play(task: Task, base_url: str, api_key: str) -> dict[str, Any]:
    """Play a task of `VerifiersTasks` once, and return its outcome: an agent of `rollout.run`.

    base_url, api_key  of the episode at gxpo's endpoint

    Raises EpisodeError for an episode that broke, so that it is unscored.
    """
    about = task.info[INFO]
    host = _host(about["env"])
    episode = asyncio.run_coroutine_threadsafe(host.play(about["task"], base_url, api_key), host.loop)
    # cancelling the agent, at its timeout, cancels the library's episode, which ends its processes
    return outcome_of(await asyncio.wrap_future(episode), host.world)


def rehearse(task: Task, reply: str) -> dict[str, Any]:
    """Play a task with the same reply to every call, without a policy; returns its outcome, as `play` does."""
    about = task.info[INFO]
    host = _host(about["env"])
    return outcome_of(asyncio.run_coroutine_threadsafe(host.play(about["task"], reply), host.loop).result(), host.world)


def outcome_of(episode: Any, world: LoadedEnv) -> dict[str, Any]:
    """Outcome of an episode of the library, as an agent returns one.

    The reward is the sum of the trace's weighted rewards; its rewards, before their weights, and its metrics are the
    further named values. Of several traces of the policy all are means, under SEAT.NAME.
    """
    if episode.errors:
        error = episode.errors[-1]
        raise EpisodeError(f"{error.type}: {one_line(error.message)}")
    traces = [trace for trace in episode.traces if trace.agent.name in world.policies]
    for trace in episode.traces:
        if not trace.ok:
            error = trace.last_error
            raise EpisodeError(one_line(f"{error.type}: {error.message}" if error else "a rollout failed"))
    for trace in traces:
        if unscored := [name for name, reward in trace.rewards.items() if reward is None]:
            raise EpisodeError(f"scoring did not finish: reward {unscored[0]} has no value")
        if not trace.rewards:
            raise EpisodeError("it has no reward: its task has no @reward, and its environment recorded none")
        if not trace.agent.trainable:
            raise EpisodeError(f"seat {trace.agent.name} is not trained by its environment, and its calls would be")
    if len(traces) > 1 and world.spec.team_reward is None:
        raise EpisodeError(
            f"an episode with {len(traces)} traces of the policy, each with a reward: tasks.options.team_reward=mean "
            "pays all of them the mean"
        )
    reward, values = _mean([trace.reward for trace in traces]), _named_values(traces)
    return {
        "reward": reward,
        "success": reward >= world.spec.success_at,
        "rewards": values,
        "info": {
            INFO: {
                "stop": [trace.stop_condition for trace in traces],
                "turns": [trace.num_turns for trace in traces],
                "timeout": any(trace.is_timeout for trace in traces),
                "values": values,  # those that the environment records have no component of the run
            }
        },
    }


def _named_values(traces: Sequence[Any]) -> dict[str, float]:
    """Rewards and metrics by name; those without a finite value are left out."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for trace in traces:
        rewards = {name: reward.score for name, reward in trace.rewards.items()}
        for name, value in (trace.metrics | rewards).items():
            if value is not None and math.isfinite(value):
                # "agent" is what the outcome itself is called
                full_name = f"{trace.agent.name}.{name}" if len(traces) > 1 or name == "agent" else name
                values[full_name].append(float(value))
    return {name: _mean(group) for name, group in values.items()}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# ---------------------------------------------------------------- hosts
_LOCK = threading.Lock()


def _host(text: str) -> Host:
    """Host of an environment, started by the first of its episodes."""
    with _LOCK:
        return _start(text)


@functools.lru_cache(maxsize=8)
def _start(text: str) -> Host:
    host = Host(load(text))
    atexit.register(host.close)
    return host


class Host:
    """Event loop of an environment, with its shared servers and the address that its clients call."""

    def __init__(self, world: LoadedEnv) -> None:
        self.world, self.loop = world, asyncio.new_event_loop()
        # trace id -> base URL and key of its episode; without a key the text that replies to every call
        self._lines: dict[str, tuple[str, str]] = {}
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"{world.spec.label}", daemon=True)
        self._thread.start()
        ready: Future[None] = Future()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(ready), self.loop)
        ready.result()

    def close(self) -> None:
        """End the servers and the loop."""
        self.loop.call_soon_threadsafe(self._over.set)
        with contextlib.suppress(Exception):
            self._serving.result(JOIN_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(JOIN_SECONDS)

    async def play(self, number: int, base_url: str, api_key: str = "") -> Any:
        """Let the library play its task `number`; returns its `Episode`. Without a key `base_url` is every reply."""
        ids: list[str] = []

        def watch(trace: Any) -> None:
            # called as a trace is made, before its first call
            ids.append(trace.id)
            self._lines[trace.id] = (base_url, api_key)

        try:
            return await self.world.env.run_episode(self.world.tasks[number], self._context, on_trace=watch)
        finally:
            for name in ids:
                self._lines.pop(name, None)

    async def _serve(self, ready: Future[None]) -> None:
        """Hold the servers from `ready` on to `close`, in one task, as their contexts demand."""
        clients = need("verifiers.v1.clients", "verifiers")
        self._over = asyncio.Event()
        try:
            async with self._address() as url, self.world.env.serving():
                client = clients.EvalClientConfig(base_url=url, api_key_var=NO_KEY)
                self._context = clients.ModelContext(model=POLICY, client=client)
                ready.set_result(None)
                await self._over.wait()
        except BaseException as error:
            if ready.done():
                raise
            message = one_line(f"{type(error).__name__}: {error}")
            ready.set_exception(EpisodeError(f"{self.world.spec.label} can't start: {message}"))

    @contextlib.asynccontextmanager
    async def _address(self) -> AsyncIterator[str]:
        """Serve the address that all clients of this environment call; yields its URL."""
        aiohttp, web = need("aiohttp", "verifiers"), need("aiohttp.web", "verifiers")
        application = web.Application(client_max_size=LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            # as many connections as there are calls, which may wait for the replies to others
            async with aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
            ) as self._http:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()

    async def _pass_on(self, request: Any) -> Any:
        """Pass a call on to gxpo's endpoint, under the key of its episode."""
        web = need("aiohttp.web", "verifiers")
        path = request.match_info["path"].removeprefix("v1/")
        if path == "models":
            return web.json_response({"object": "list", "data": [{"id": POLICY, "object": "model"}]})
        if (line := self._lines.get(request.headers.get(TRACE_HEADER, ""))) is None:
            return web.json_response(_error(f"{path}: a call of no rollout that is under way"), status=404)
        base_url, key = line
        if not key:
            is_stream = bool((await request.json()).get("stream"))
            kind = "text/event-stream" if is_stream else "application/json"
            return web.Response(text=_completion(base_url, is_stream), content_type=kind)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        async with self._http.post(f"{base_url}/{path}", data=await request.read(), headers=headers) as reply:
            kind = reply.headers.get("Content-Type", "application/json")
            return web.Response(body=await reply.read(), status=reply.status, headers={"Content-Type": kind})


def _completion(text: str, is_stream: bool) -> str:
    """A completion of the API that says `text`, or the events that stream it."""
    common = {"id": "0", "created": 0, "model": POLICY}
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    if not is_stream:
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return json.dumps({**common, "object": "chat.completion", "choices": [choice], "usage": usage})
    choices = ({"delta": message, "finish_reason": None}, {"delta": {}, "finish_reason": "stop"})
    events = [{**common, "object": "chat.completion.chunk", "choices": [{"index": 0, **c}]} for c in choices]
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


def _error(message: str) -> Mapping[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
