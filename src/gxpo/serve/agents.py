"""Agents of a user: a Python function, in a thread for each episode, or a command, in a process for each."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gxpo.errors import ConfigError
from gxpo.process_tree import end_tree
from gxpo.protocols import Task
from gxpo.serve.outcome import Nonsense, Outcome, last_line, outcome_of
from gxpo.serve.request import POLICY
from gxpo.usercode import Unusable, described, object_at, one_line

ARGUMENTS = ("task", "prompt", "answer", "info", "base_url", "api_key", "model", "attempt", "evaluation")
FUNCTION = re.compile(r"\S+:[A-Za-z_]\w*")
MOST = 1 << 20  # characters of a command's output that are kept, from its end


@dataclass(frozen=True)
class Line:
    """What an agent is given beside its task: where the policy is, and by which key."""

    base_url: str
    api_key: str
    attempt: int
    evaluation: bool


@dataclass(eq=False)
class Playing:
    """An episode under way. `kind` and `message` say how it failed, None where it did not."""

    outcome: Outcome = field(default_factory=Outcome)
    kind: str | None = None
    message: str = ""
    _stop: Callable[[], object] = lambda: None
    _stopped: bool = False

    def stop(self) -> None:
        """End it: a command with all its processes, a coroutine at its next await; of a function only its calls can be
        refused."""
        self._stopped = True
        self._stop()

    def fail(self, kind: str, message: str) -> None:
        """The first failure is the one that counts."""
        if self.kind is None:
            self.kind, self.message = kind, one_line(message)


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
    playing._stop = lambda: loop.call_soon_threadsafe(task.cancel)
    if playing._stopped:
        task.cancel()
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

    def play(task: Task, line: Line, playing: Playing) -> None:
        try:
            code, said, complaint = _ended(words, task, line, playing)
        except OSError as error:
            playing.fail("raised", f"{words[0]} can't be started: {error.strerror}")
            return
        if code:
            last = next((x for x in reversed(complaint.splitlines()) if x.strip()), "nothing on standard error")
            kind, how = ("died", f"signal {-code}") if code < 0 else ("raised", f"exit status {code}")
            playing.fail(kind, f"{how}: {last}")
            return
        try:
            playing.outcome = outcome_of(last_line(said))
        except Nonsense as error:
            playing.fail("nonsense", str(error).replace("it returned", "its last line has"))

    return play


def _ended(words: list[str], task: Task, line: Line, playing: Playing) -> tuple[int, str, str]:
    """Exit status, output and complaints of the command, with all that it started ended."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment(line)},
        start_new_session=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    playing._stop = lambda: end_tree(process.pid)
    if playing._stopped:
        playing.stop()
    said, complaint = process.communicate(json.dumps(as_json(task), default=str) + "\n")
    return process.returncode, said[-MOST:], complaint[-MOST:]


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
