"""User-written agents: a Python function run in a thread per episode, or a command run in a process per episode."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import Unusable, described, object_at, one_line
from gxpo.parts.protocols import Task
from gxpo.sampling.serve.command import Command, NotStarted, Tail
from gxpo.sampling.serve.outcome import Nonsense, Outcome, last_line, outcome_of
from gxpo.sampling.serve.request import POLICY
from gxpo.sampling.serve.strict_json import Malformed

ARGUMENTS = ("task", "prompt", "answer", "info", "base_url", "api_key", "model", "attempt", "evaluation")
FUNCTION = re.compile(r"\S+:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Line:
    """Connection of an agent to the policy: base URL, key of its episode, number of the attempt."""

    base_url: str
    api_key: str
    attempt: int
    evaluation: bool


@dataclass(eq=False)
class Playing:
    """Running episode of an agent; `kind` and `message` tell how it failed (None: it has not).

    output_error  why a command's last line is no result; it counts if the agent has posted none
    """

    outcome: Outcome = field(default_factory=Outcome)
    kind: str | None = None
    message: str = ""
    output_error: str = ""
    _stop: Callable[[], object] = lambda: None
    _is_stopped: bool = False

    def stop(self) -> None:
        """Stop the episode: a command with all its processes, a coroutine at its next await. A plain function can't be
        stopped; only its further calls are refused."""
        self._is_stopped = True
        self._stop()

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Register the function that stops the episode; it is called at once if the episode was stopped before."""
        self._stop = stop
        if self._is_stopped:
            stop()

    def fail(self, kind: str, message: str) -> None:
        """Record a failure; only the first one counts."""
        if self.kind is None:
            # Users' messages may hold half surrogate pairs, which a record could not be written with.
            self.kind, self.message = kind, one_line(message.encode("utf-8", "backslashreplace").decode())


Agent = Callable[[Task, Line, Playing], None]  # plays to the end, in the calling thread


def agent_of(run: str | Callable[..., Any]) -> Agent:
    """Build the agent of `rollout.run`: FILE.py:NAME, package.module:NAME, a function, or else a command line."""
    if callable(run):
        return _function_agent(run, "rollout.run")
    return _agent_from_file(run) if FUNCTION.fullmatch(run) else _command_agent(run)


def _agent_from_file(run: str) -> Agent:
    """Load a function by FILE.py:NAME or package.module:NAME."""
    try:
        target = object_at(run)
    except Unusable as error:
        raise ConfigError(f"rollout.run={run}: {error}") from error
    if not callable(target):
        raise ConfigError(f"rollout.run={run}: it is a {type(target).__name__}, not a function")
    return _function_agent(target, f"rollout.run={run}")


def start(agent: Agent, task: Task, line: Line, over: Callable[[], None]) -> Playing:
    """Play an episode in a thread of its own, which calls `over` at the end."""
    playing = Playing()

    def play() -> None:
        try:
            agent(task, line, playing)
        except BaseException as error:  # such as an exception that can't be written as text
            playing.fail("raised", type(error).__name__)
        finally:
            over()

    threading.Thread(target=play, name=f"agent {line.attempt}", daemon=True).start()
    return playing


# ---------------------------------------------------------------- functions
def _function_agent(run: Callable[..., Any], label: str) -> Agent:
    names = list(inspect.signature(run).parameters)
    if unknown := [n for n in names if n not in ARGUMENTS]:
        available = ", ".join(ARGUMENTS)
        raise ConfigError(f"{label}: the function asks for {unknown[0]!r}; there are {available}")

    def play(task: Task, line: Line, playing: Playing) -> None:
        arguments = {
            "task": task, "prompt": task.prompt, "answer": task.answer, "info": dict(task.info), "model": POLICY,
            **vars(line),
        }  # fmt: skip
        try:
            result = run(**{name: arguments[name] for name in names})
            if inspect.isawaitable(result):
                result = asyncio.run(_await_result(result, playing))
            playing.outcome = outcome_of(result)
        except Nonsense as error:
            playing.fail("nonsense", str(error))
        except asyncio.CancelledError:
            playing.fail("timeout", "it was stopped")
        except BaseException as error:
            playing.fail("raised", described(error))

    return play


async def _await_result(awaitable: Any, playing: Playing) -> Any:
    """Await an agent's coroutine so that stopping the episode cancels it."""
    task, loop = asyncio.ensure_future(awaitable), asyncio.get_running_loop()

    def cancel() -> None:
        with suppress(RuntimeError):  # the loop has ended with the coroutine
            loop.call_soon_threadsafe(task.cancel)

    playing.on_stop(cancel)
    return await task


# ---------------------------------------------------------------- commands
def _command_agent(run: str) -> Agent:
    """Agent that runs a command line, with the task as JSON on standard input and the result as its last line."""
    try:
        words = shlex.split(run)
    except ValueError as error:
        raise ConfigError(f"rollout.run={run!r}: {error}") from error
    if not words:
        raise ConfigError("rollout.run is empty: give FILE.py:FUNCTION or a command line")
    # "python" means the interpreter of the run, whose packages the agent was written for, whatever PATH has first.
    words = [sys.executable, *words[1:]] if words[0] == "python" else words

    if not hasattr(os, "fork"):
        raise ConfigError("agents that are commands need Linux or macOS: on Windows use WSL, or a Python function")

    def play(task: Task, line: Line, playing: Playing) -> None:
        task_line = json.dumps(as_json(task), default=str) + "\n"
        try:
            # Registered before the command runs, so that a timeout that strikes right away still ends it.
            command = Command(words, environment(line), line.api_key)
            playing.on_stop(command.end)
            code, output, complaint = command.run(task_line.encode())
        except NotStarted as error:
            playing.fail("raised", f"{words[0]} can't be started: {error}")
        except OSError as error:
            playing.fail("raised", f"{words[0]} can't be started: {error.strerror}")
        else:
            _set_result(playing, code, output, complaint)

    return play


def _set_result(playing: Playing, code: int, output: Tail, complaint: Tail) -> None:
    """Record the result or failure of a command that has ended."""
    if code:
        lines = complaint.text.decode("utf-8", "replace").splitlines()
        last_line_of_error = next((line for line in reversed(lines) if line.strip()), "nothing on standard error")
        kind, status = ("died", f"signal {-code}") if code < 0 else ("raised", f"exit status {code}")
        playing.fail(kind, f"{status}: {last_line_of_error}")
        return
    try:
        playing.outcome = outcome_of(last_line(bytes(output.text), output.is_whole))
    except Malformed as error:
        playing.output_error = f"its last line is no result in JSON ({error}): print null where it has none"
    except Nonsense as error:
        playing.fail("nonsense", str(error).replace("it returned", "its last line has"))


def environment(line: Line) -> dict[str, str]:
    """Environment variables for an agent: those that clients of OpenAI and Anthropic read, and the attempt's number."""
    return {
        "OPENAI_BASE_URL": line.base_url,
        "OPENAI_API_BASE": line.base_url,
        "OPENAI_API_KEY": line.api_key,
        "OPENAI_MODEL": POLICY,
        "ANTHROPIC_BASE_URL": line.base_url.removesuffix("/v1"),  # its clients append the version
        "ANTHROPIC_API_KEY": line.api_key,
        "ANTHROPIC_MODEL": POLICY,
        "GXPO_ATTEMPT": str(line.attempt),
        "GXPO_EVALUATION": str(int(line.evaluation)),
    }


def as_json(task: Task) -> Mapping[str, Any]:
    """Task in the form of the JSON line that a command reads on standard input."""
    return {"id": task.id, "prompt": task.prompt, "answer": task.answer, "info": dict(task.info)}
