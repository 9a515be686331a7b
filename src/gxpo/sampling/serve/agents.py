"""Agents of a user: a Python function, in a thread for each episode, or a command, in a process for each."""

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
    """What an agent is given beside its task: where the policy is, and by which key."""

    base_url: str
    api_key: str
    attempt: int
    evaluation: bool


@dataclass(eq=False)
class Playing:
    """An episode under way. `kind` and `message` say how it failed, None where it did not.

    output_error  why what a command printed last is no result; it counts where the agent has posted none
    """

    outcome: Outcome = field(default_factory=Outcome)
    kind: str | None = None
    message: str = ""
    output_error: str = ""
    _stop: Callable[[], object] = lambda: None
    _stopped: bool = False

    def stop(self) -> None:
        """End it: a command with all its processes, a coroutine at its next await; of a function only its calls can be
        refused."""
        self._stopped = True
        self._stop()

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Have `stop` called when the episode is to end, at once where it is already."""
        self._stop = stop
        if self._stopped:
            stop()

    def fail(self, kind: str, message: str) -> None:
        """The first failure is the one that counts."""
        if self.kind is None:
            self.kind, self.message = kind, one_line(message.encode("utf-8", "backslashreplace").decode())


Agent = Callable[[Task, Line, Playing], None]  # plays to the end, in the calling thread


def agent_of(run: str | Callable[..., Any]) -> Agent:
    """The agent that `rollout.run` means: FILE.py:NAME, package.module:NAME, a function, or else a command line."""
    if callable(run):
        return _function(run, "rollout.run")
    return _of_file(run) if FUNCTION.fullmatch(run) else _command(run)


def _of_file(run: str) -> Agent:
    try:
        found = object_at(run)
    except Unusable as error:
        raise ConfigError(f"rollout.run={run}: {error}") from error
    if not callable(found):
        raise ConfigError(f"rollout.run={run}: it is a {type(found).__name__}, not a function")
    return _function(found, f"rollout.run={run}")


def start(agent: Agent, task: Task, line: Line, over: Callable[[], None]) -> Playing:
    """Plays an episode in a thread; `over` is called there at its end."""
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
def _function(run: Callable[..., Any], label: str) -> Agent:
    names = list(inspect.signature(run).parameters)
    if unknown := [n for n in names if n not in ARGUMENTS]:
        known = ", ".join(ARGUMENTS)
        raise ConfigError(f"{label}: the function asks for {unknown[0]!r}; there are {known}")

    def play(task: Task, line: Line, playing: Playing) -> None:
        known = {
            "task": task, "prompt": task.prompt, "answer": task.answer, "info": dict(task.info), "model": POLICY,
            **vars(line),
        }  # fmt: skip
        try:
            found = run(**{name: known[name] for name in names})
            if inspect.isawaitable(found):
                found = asyncio.run(_awaited(found, playing))
            playing.outcome = outcome_of(found)
        except Nonsense as error:
            playing.fail("nonsense", str(error))
        except asyncio.CancelledError:
            playing.fail("timeout", "it was stopped")
        except BaseException as error:
            playing.fail("raised", described(error))

    return play


async def _awaited(found: Any, playing: Playing) -> Any:
    task, loop = asyncio.ensure_future(found), asyncio.get_running_loop()

    def cancel() -> None:
        with suppress(RuntimeError):  # the loop has ended with the coroutine
            loop.call_soon_threadsafe(task.cancel)

    playing.on_stop(cancel)
    return await task


# ---------------------------------------------------------------- commands
def _command(run: str) -> Agent:
    try:
        words = shlex.split(run)
    except ValueError as error:
        raise ConfigError(f"rollout.run={run!r}: {error}") from error
    if not words:
        raise ConfigError("rollout.run is empty: give FILE.py:FUNCTION or a command line")
    words = [sys.executable, *words[1:]] if words[0] == "python" else words

    if not hasattr(os, "fork"):
        raise ConfigError("agents that are commands need Linux or macOS: on Windows use WSL, or a Python function")

    def play(task: Task, line: Line, playing: Playing) -> None:
        task_line = json.dumps(as_json(task), default=str) + "\n"
        try:
            command = Command(words, environment(line), line.api_key)
            playing.on_stop(command.end)
            code, output, complaint = command.run(task_line.encode())
        except NotStarted as error:
            playing.fail("raised", f"{words[0]} can't be started: {error}")
        except OSError as error:
            playing.fail("raised", f"{words[0]} can't be started: {error.strerror}")
        else:
            _judge_ended(playing, code, output, complaint)

    return play


def _judge_ended(playing: Playing, code: int, output: Tail, complaint: Tail) -> None:
    """Note down how a command ended and what it printed."""
    if code:
        lines = complaint.text.decode("utf-8", "replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "nothing on standard error")
        kind, how = ("died", f"signal {-code}") if code < 0 else ("raised", f"exit status {code}")
        playing.fail(kind, f"{how}: {last}")
        return
    try:
        playing.outcome = outcome_of(last_line(bytes(output.text), output.is_whole))
    except Malformed as error:
        playing.output_error = f"its last line is no result in JSON ({error}): print null where it has none"
    except Nonsense as error:
        playing.fail("nonsense", str(error).replace("it returned", "its last line has"))


def environment(line: Line) -> dict[str, str]:
    """The variables that OpenAI's clients read, and the number of the attempt."""
    return {
        "OPENAI_BASE_URL": line.base_url,
        "OPENAI_API_BASE": line.base_url,
        "OPENAI_API_KEY": line.api_key,
        "OPENAI_MODEL": POLICY,
        "GXPO_ATTEMPT": str(line.attempt),
        "GXPO_EVALUATION": str(int(line.evaluation)),
    }


def as_json(task: Task) -> Mapping[str, Any]:
    """A task as a command reads it, a line on standard input."""
    return {"id": task.id, "prompt": task.prompt, "answer": task.answer, "info": dict(task.info)}
