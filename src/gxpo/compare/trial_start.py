"""Processes of a trial's runs: forks of one that has imported TRL, which takes longer than a short run, or new ones."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from gxpo.compare import trial_child

MODULE = "gxpo.compare.trial_child"


class Children:
    """Starts children, each in a session of its own, so that all that it starts can be ended with it.

    imports_trl  children run a script of TRL: they are forked by servers that have imported it, one for each that runs
                 at a time. Not where there is a GPU, which a fork can't use
    """

    def __init__(self, python: str, environment: Mapping[str, str], *, imports_trl: bool) -> None:
        self.python, self.environment, self.can_fork = python, dict(environment), imports_trl
        self.is_ending = False
        self._groups: set[int] = set()
        self._servers: list[subprocess.Popen[str]] = []
        self._idle: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()

    def run(self, path: Path, log: Path) -> int:
        """Run the job of a folder to its end; its exit code, negative for a signal."""
        server = self._server() if self.can_fork else None
        if server is None:
            return self._run_alone(path, log)
        assert server.stdin is not None and server.stdout is not None
        try:
            server.stdin.write(json.dumps([str(path.resolve()), str(log.resolve())]) + "\n")
            server.stdin.flush()
            with self._track_group(int(server.stdout.readline())):
                code = int(server.stdout.readline())
        # A server that was killed takes its child along.
        except (OSError, ValueError):
            return server.wait()
        with self._lock:
            self._idle.append(server)
        return code

    def end(self) -> None:
        """End all children, and whatever these have started."""
        self.is_ending = True
        with self._lock:
            groups = [*self._groups, *(s.pid for s in self._servers if s.poll() is None)]
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def _run_alone(self, path: Path, log: Path) -> int:
        command = [self.python, "-m", MODULE, str(path.resolve()), str(os.getpid())]
        with log.open("wb") as file:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self.environment,
                start_new_session=True,
            )
            with self._track_group(child.pid):
                return child.wait()

    @contextlib.contextmanager
    def _track_group(self, group: int) -> Iterator[None]:
        with self._lock:
            self._groups.add(group)
        try:
            yield
        finally:
            with self._lock:
                self._groups.discard(group)

    def _server(self) -> subprocess.Popen[str] | None:
        """An idle server, or a new one; None where processes with TRL can't be forked."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            command = [self.python, "-m", MODULE, trial_child.SERVE, str(os.getpid())]
            server = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=self.environment, start_new_session=True,
            )  # fmt: skip
            self._servers.append(server)
        # Packages print while they are imported: the answer is the line after the mark.
        assert server.stdout is not None
        answer = next((line for line in server.stdout if line.startswith(trial_child.SERVE)), "")
        if answer.split() == [trial_child.SERVE, "forks"]:
            return server
        self.can_fork = False
        return None
