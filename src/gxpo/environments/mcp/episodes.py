"""Episodes with tools at listed tasks: the environment `ToolEpisodes`, as rollouts play it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.base.errors import GxpoError, TaskError
from gxpo.environments.mcp.connection import headers_of, run_in
from gxpo.environments.mcp.results import Outcome, argument_error
from gxpo.environments.mcp.servers import STARTS, Server, offered_by
from gxpo.environments.mcp.settings import ServerSpec
from gxpo.parts.protocols import EnvFailure, Message, Reply, Task, TimeStep, ToolCall

MAX_TURNS = 8  # replies of an episode, where `env.max_turns` says nothing
AT_ONCE = 64  # calls of one server under way at the same time, where `env.concurrency` says nothing
CALLS = 16  # of one reply that are carried out
FRUITLESS = 3  # turns in a row in which no call of a server could start it, after which a run ends


class ToolEpisodes:
    """Listed tasks as episodes: a reply with calls is answered with their results, one without is the answer.

    An episode opens with its task's prompt, with the servers' allowed tools shown by the chat format. A reply without a
    call ends it, and is what the task's reward scores; so the environment pays nothing and gives no verdict. The calls
    of a reply are carried out in order, those of several episodes at the same time. A call that can't be read, names
    no such tool or does not fit the tool's schema never reaches a server, and its result says what is wrong. What a
    server does costs the call, never the episode: a result that says so (`Outcome`).

    `info["calls"]` of a turn has the name, the arguments, the outcome and the result of each of its calls. An episode
    depends on the policy and on what the tools answer, on nothing else: shared servers have to answer without a memory
    of other episodes.

    servers      of `env.mcp`; started when the tools are asked for first
    max_turns    replies that an episode may have
    concurrency  calls of one server under way at the same time
    of_tasks     True: `reset` takes tasks, and the last reply is judged by the run's reward
    counts, messages  failures of episodes: none of its own, since a failed call is a result
    """

    of_tasks = True
    concurrent = False
    instructions = ""

    def __init__(
        self, servers: Sequence[ServerSpec], *, max_turns: int | None = None, concurrency: int | None = None
    ) -> None:
        self.specs, self.max_turns = tuple(servers), max_turns or MAX_TURNS
        self.name = "mcp"
        # without a state of their own episodes go on anywhere; with one, forks carry out their calls again
        self.provides: tuple[str, ...] = () if any(spec.per_episode for spec in servers) else ("snapshots",)
        self.counts = dict.fromkeys(("raised", "nonsense", "timeout", "died"), 0)
        self.messages: dict[str, str] = {}
        self.seconds = 0.0  # spent on calls so far
        self._concurrency = concurrency or AT_ONCE
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._offered: list[dict[str, Any]] | None = None
        self._shared: dict[int, Server] = {}  # by place in `specs`
        self._own: dict[str, dict[int, Server]] = {}  # of episodes under way, by name
        self._begun: set[str] = set()
        self._fruitless = [0] * len(servers)  # turns in a row in which a server was called and could not be started
        for spec in servers:
            headers_of(spec)

    # ------------------------------------------------------------ tools
    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """Schemas of all allowed tools, in the order of the configuration."""
        return tuple(schema for schemas in self._schemas() for schema in schemas.values())

    def _schemas(self) -> list[dict[str, Any]]:
        offered = self._run(offered_by(self.specs)) if self._offered is None else self._offered
        self._offered = offered
        return offered

    def _place_of(self, tool: str) -> int | None:
        return next((place for place, schemas in enumerate(self._schemas()) if tool in schemas), None)

    # ------------------------------------------------------------ episodes
    def reset(self, tasks: Mapping[str, Task]) -> dict[str, TimeStep | EnvFailure]:
        """Begin an episode at each task: the observation is its prompt."""
        self._check(tasks.values())
        for name in tasks:
            self.finish([name])
            self._begun.add(name)
        return {name: TimeStep(_prompt(task), info={"tools": len(self.tools)}) for name, task in tasks.items()}

    def step(self, actions: Mapping[str, Reply]) -> dict[str, TimeStep | EnvFailure]:
        """Carry out the calls of each reply; a reply without calls ends its episode."""
        for name in actions:
            if name not in self._begun:
                raise ValueError(f"environment {self.name}: no episode {name!r} is under way")
        calling = {name: reply.calls for name, reply in actions.items() if reply.calls}
        outcomes: dict[str, list[Outcome]] = {}
        if calling:
            begun = time.perf_counter()
            outcomes = self._run(self._outcomes(calling))
            self.seconds += time.perf_counter() - begun
            self._check_reached(calling, outcomes)
        steps: dict[str, TimeStep | EnvFailure] = {}
        for name, reply in actions.items():
            steps[name] = _turn(reply.calls, outcomes[name]) if name in outcomes else TimeStep("", done=True)
        self.finish([name for name in actions if name not in outcomes])
        return steps

    def finish(self, names: Sequence[str]) -> None:
        """Abandon these episodes, and end the servers that are their own."""
        self._begun -= set(names)
        servers = [server for name in names for server in self._own.pop(name, {}).values()]
        if servers:
            self._run(_close_all(servers))

    def snapshot(self, names: Sequence[str]) -> dict[str, str | EnvFailure]:
        """Position of each episode, which is the conversation alone: empty texts."""
        return dict.fromkeys(names, "")

    def restore(self, snapshots: Mapping[str, str]) -> dict[str, EnvFailure | None]:
        """Begin an episode under each name from a snapshot."""
        self._begun |= set(snapshots)
        return dict.fromkeys(snapshots)

    def close(self) -> None:
        """End all servers and the thread that talks to them; the next use starts them again."""
        if self._loop is None or self._thread is None:
            return
        servers = [*self._shared.values(), *(server for own in self._own.values() for server in own.values())]
        self._shared, self._own, self._begun = {}, {}, set()
        with contextlib.suppress(RuntimeError):  # the loop's thread ended with the interpreter
            self._run(_close_all(servers))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._loop = self._thread = None

    # ------------------------------------------------------------ calls
    async def _outcomes(self, calls: Mapping[str, Sequence[ToolCall]]) -> dict[str, list[Outcome]]:
        """Outcomes of the calls of each episode: its calls one after the other, the episodes side by side."""
        outcomes = await asyncio.gather(*(self._outcomes_of(name, own) for name, own in calls.items()))
        return dict(zip(calls, outcomes, strict=True))

    async def _outcomes_of(self, episode: str, calls: Sequence[ToolCall]) -> list[Outcome]:
        return [await self._outcome(episode, i, call) for i, call in enumerate(calls)]

    async def _outcome(self, episode: str, number: int, call: ToolCall) -> Outcome:
        if number >= CALLS:
            return Outcome("invalid", f"Error: only the first {CALLS} calls of a reply are carried out.")
        if call.error is not None:
            return Outcome("invalid", f"Error: {call.error}")
        place = self._place_of(call.name)
        if place is None:
            names = ", ".join(tool["function"]["name"] for tool in self.tools)
            return Outcome("invalid", f"Error: there is no tool {call.name!r}; the tools are {names}.")
        if (problem := argument_error(self._schemas()[place][call.name], call.arguments)) is not None:
            return Outcome("invalid", f"Error: {problem}")
        outcome = await self._server(episode, place).call(call.name, call.arguments)
        # a server of the episode alone has lost what it knew: the policy has to be told
        if outcome.kind == "died" and self.specs[place].per_episode:
            return Outcome("died", f"{outcome.text} It begins anew with the next call.")
        return outcome

    def _check_reached(
        self, calls: Mapping[str, Sequence[ToolCall]], outcomes: Mapping[str, Sequence[Outcome]]
    ) -> None:
        """Raise GxpoError for a server that could not be started for `FRUITLESS` turns: every further call would be an
        error that the policy is trained on."""
        kinds: dict[int, set[str]] = {}
        for name, own in calls.items():
            for call, outcome in zip(own, outcomes[name], strict=True):
                place = self._place_of(call.name)
                if place is not None and outcome.kind != "invalid":
                    kinds.setdefault(place, set()).add(outcome.kind)
        for place, met in kinds.items():
            self._fruitless[place] = self._fruitless[place] + 1 if met == {"unreachable"} else 0
            if self._fruitless[place] == FRUITLESS:
                raise GxpoError(
                    f"MCP server {self.specs[place].label} could not be started in {FRUITLESS} turns in a row: run it "
                    "by itself to see why, then resume"
                )

    def _server(self, episode: str, place: int) -> Server:
        servers = self._own.setdefault(episode, {}) if self.specs[place].per_episode else self._shared
        if place not in servers:
            servers[place] = Server(self.specs[place], self._schemas()[place], self._concurrency, self._starts[place])
        return servers[place]

    # ------------------------------------------------------------ the loop's thread
    def _run(self, work: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._starts = [asyncio.Semaphore(STARTS) for _ in self.specs]
            self._thread = threading.Thread(target=self._loop.run_forever, name="gxpo-mcp", daemon=True)
            self._thread.start()
        return run_in(self._loop, work)

    def _check(self, tasks: Any) -> None:
        """Raise TaskError for prompts that no tools can be shown in."""
        for task in tasks:
            if not isinstance(task.prompt, str) and (not task.prompt or isinstance(task.prompt[0], int)):
                raise TaskError(
                    f"task {task.id!r}: its prompt is token ids, and env.mcp shows tools in texts and chats"
                )


def _prompt(task: Task) -> str | tuple[Message, ...]:
    return task.prompt  # type: ignore[return-value]  # `_check` has refused token ids


def _turn(calls: Sequence[ToolCall], outcomes: Sequence[Outcome]) -> TimeStep:
    """Time step of a reply with calls: a message with each result, and the calls as `info`."""
    messages = [_message(call, outcome.text) for call, outcome in zip(calls, outcomes, strict=True)]
    # chat templates want results of tools right after the calls, before a message of the user's
    messages.sort(key=lambda message: message["role"] != "tool")
    notes = [
        {"name": call.name, "arguments": _plain(call.arguments), "outcome": outcome.kind, "result": outcome.text}
        for call, outcome in zip(calls, outcomes, strict=True)
    ]
    is_malformed = any(call.error is not None for call in calls)
    is_illegal = any(outcome.kind == "invalid" for outcome in outcomes)
    error = "malformed" if is_malformed else "illegal" if is_illegal else None
    return TimeStep(tuple(messages), action_error=error, info={"calls": notes})


def _message(call: ToolCall, text: str) -> Message:
    """Message with the result of a call; of the user where the call could not be read, and so has no tool."""
    if call.error is not None:
        return {"role": "user", "content": text}
    call_id = {} if call.id is None else {"tool_call_id": call.id}
    return {"role": "tool", "name": call.name, "content": text, **call_id}


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they are written to records: JSON, without numbers that it does not have."""
    return json.loads(json.dumps(dict(arguments)), parse_constant=str)


async def _close_all(servers: Sequence[Server]) -> None:
    await asyncio.gather(*(server.close() for server in servers))
