"""Small runs on this machine whose processes are killed, and what is left of them: for `chaos.py` and its test.

    served     one process that samples beside its updates (async.max_staleness=1) from two servers, which are given its
               weights; two reward workers, two environment workers
    sharded    two processes of torchrun with cluster.backend=fsdp, environment and reward workers
    parallel   two processes of torchrun, each with all weights, environment and reward workers

The servers are those of the tests (`tests/sampling/engines/fake_server.py`): they speak vLLM's routes, and sample the
same tokens for the same seed. Only processes that were started here are ended, by their ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chaos_outcome import GROUP, PER_STEP, STEPS, Kill, Outcome, Setting, lines
from gxpo.base.process_tree import descendants, is_running

ROOT = Path(__file__).parents[2]
LONGEST = 400.0  # seconds that a run may take, its resumes included
LEAVING = 10.0  # seconds in which processes have to be gone whose trainer is
POLL, LOOK = 0.05, 0.5  # seconds between two looks at what was written, and at processes

WORLD = '''
import time

from gxpo import TimeStep


class Walk:
    """A number that every action moves; where it is odd it pays. Slow, so that it is often killed while it acts."""

    instructions = "Say anything."
    max_turns = 3

    def reset(self, seed):
        time.sleep(0.02)
        self.at = seed % 1009
        return self.shown()

    def step(self, action):
        time.sleep(0.02)
        self.at = (31 * self.at + sum(map(ord, action)) + 1) % 1009
        return self.shown(float(self.at % 2))

    def shown(self, reward=None):
        return TimeStep(str(self.at), str(self.at), reward)
'''
REWARD = """
import time


def parity(completion):
    time.sleep(0.05)
    return float(sum(map(ord, completion)) % 2)
"""


SETTINGS = {
    "served": Setting(
        ("sampler", "rewarder", "environment", "controller"),
        {"async.max_staleness": 1, "weight.mismatch": "truncated", "sampling.engine": "openai"},
        served=True,
    ),
    "sharded": Setting(
        ("rank", "rewarder", "environment", "controller"), {"cluster.backend": "fsdp"}, ranks=2
    ),
    "parallel": Setting(("rank", "rewarder", "environment", "controller"), {}, ranks=2),
}  # fmt: skip
KEYS: dict[str, Any] = {
    "model": "tiny:cold",
    "method": "grpo",
    "tasks.per_step": PER_STEP,
    "rollout.group_size": GROUP,
    "sampling.max_new_tokens": 4,
    "optim.lr": 0.01,
    "env.workers": 2,
    "scoring.workers": 2,
    "eval.every": 3,
    "eval.tasks": 2,
    "doctor.every": 0,
    "trainer.steps": STEPS,
    "trainer.checkpoint_every": 2,
    "trainer.rollouts_every": 1,
}


# ---------------------------------------------------------------- processes
class Server:
    """A server that samples, in a process of its own."""

    def __init__(self, task: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.task = task
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.sampling.engines.fake_server", "tiny:cold", self.task, str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def wait(self) -> None:
        """Wait until it answers."""
        start = time.monotonic()
        while time.monotonic() - start < LONGEST:
            if self.process.poll() is not None:
                raise SystemExit(f"a server ended with {self.process.returncode}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health"):
                return
            time.sleep(0.1)
        raise SystemExit("a server did not start")


@contextmanager
def fleet(folder: Path, number: int) -> Iterator[list[Server]]:
    """Start servers, with the files of the task and its reward, which are written into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "walk.py").write_text(WORLD)
    (folder / "parity.py").write_text(REWARD)
    servers = [Server(f"{folder / 'walk.py'}:Walk") for _ in range(number)]
    try:
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def _command(setting: Setting, words: Sequence[str]) -> list[str]:
    ranks = ["torch.distributed.run", f"--nproc-per-node={setting.ranks}", "--standalone", "-m"]
    return [sys.executable, "-m", *(ranks if setting.ranks > 1 else []), "gxpo", *words]


def _start_ticks(pid: int) -> str:
    """Return when a process began, which tells it from a later one of the same id; "" where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _is_acting(pid: int, kind: str) -> bool:
    """Tell whether a server computes, or a worker is within the world or the reward, which sleep (Linux)."""
    with contextlib.suppress(OSError):
        if kind == "sampler":
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"
        return Path(f"/proc/{pid}/wchan").read_text() == "hrtimer_nanosleep"
    return False


class Running:
    """One run: its controller, its servers, every process that was seen below the controller."""

    def __init__(self, setting: Setting, out: Path, servers: Sequence[Server]) -> None:
        self.setting, self.out, self.servers = setting, out, servers
        self.ticks_by_pid: dict[int, str] = {}
        self.starts = 0
        self.log = open(out / "log.txt", "ab")  # noqa: SIM115 (closed with the run)
        (out / "weights").mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        """Begin the run, or go on with it."""
        self.starts += 1
        words = ["resume", str(self.out / "run")]
        if not any((self.out / "run" / "checkpoints").glob("step-*")):
            words = ["train", *(w for k, v in self.keys().items() for w in ("--set", f"{k}={json.dumps(v)}")),
                     "--out", str(self.out / "run")]  # fmt: skip
        self.controller = subprocess.Popen(
            _command(self.setting, words), cwd=self.out, env=_environment(), stdout=self.log, stderr=self.log
        )

    def keys(self) -> dict[str, Any]:
        server_keys = {
            "sampling.servers": [server.url for server in self.servers],
            "sampling.engine_options": {"weights": str(self.out / "weights"), "patience": 60.0},
        }
        files = self.out.parent
        weights = {"env": 1.0, f"{files / 'parity.py'}:parity": 0.5}
        return {**KEYS, "task": f"{files / 'walk.py'}:Walk", "scoring.weights": weights, **self.setting.keys,
                **(server_keys if self.setting.served else {})}  # fmt: skip

    def look(self) -> list[int]:
        """Return the processes below the controller, and remember them."""
        pids = descendants(self.controller.pid)
        for pid in pids:
            if pid not in self.ticks_by_pid or self.ticks_by_pid[pid] != _start_ticks(pid):
                self.ticks_by_pid[pid] = _start_ticks(pid)
        return pids

    def victims(self, kill: Kill) -> list[int]:
        """List the processes that may be killed."""
        return [pid for pid in self._processes_of(kill.victim) if not kill.acting or _is_acting(pid, kill.victim)]

    def _processes_of(self, kind: str) -> list[int]:
        """List the processes of a kind."""
        below = self.look()
        if kind == "controller":
            return [self.controller.pid] if self.controller.poll() is None else []
        if kind == "sampler":
            return [server.process.pid for server in self.servers if server.process.poll() is None]
        patterns = {
            "rank": r"-m gxpo (train|resume)",
            "rewarder": r"rewards/worker\.py",
            "environment": r"envs/worker\.py",
        }
        return [pid for pid in below if re.search(patterns[kind], _command_line(pid))]

    def alive(self) -> list[int]:
        """List those of the processes that were seen that still are."""
        return [
            pid for pid, ticks in self.ticks_by_pid.items() if ticks and _start_ticks(pid) == ticks and is_running(pid)
        ]

    def close(self) -> list[str]:
        """End what is left; say what outlived the controller."""
        self.look()
        if self.controller.poll() is None:
            self.controller.kill()
        self.controller.wait()
        survivors = self.wait_until_gone()
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.log.close()
        return survivors

    def wait_until_gone(self) -> list[str]:
        """Wait until all processes of the controller are gone; say which are not."""
        start = time.monotonic()
        while self.alive() and time.monotonic() - start < LEAVING:
            time.sleep(POLL)
        return [f"a process outlived its controller: {_command_line(pid)[:100]}" for pid in self.alive()]


# ---------------------------------------------------------------- a run under kills
def survive(setting: Setting, out: Path, kills: Sequence[Kill], servers: Sequence[Server]) -> Outcome:
    """Kill a run and resume it until it ends; `servers` of `fleet` in the folder of `out`."""
    out.mkdir(parents=True)
    outcome = Outcome(out / "run", setting)
    start = time.monotonic()
    running = Running(setting, out, servers)
    rng = random.Random(str([(k.victim, k.step, k.delay) for k in kills]))
    todo, due, restarts, last_look = list(kills), None, [], 0.0
    try:
        while time.monotonic() - start < LONGEST:
            now = time.monotonic()
            if now >= last_look + LOOK:
                last_look = now
                running.look()
            for server, at in list(restarts):
                if now >= at:
                    server.start()
                    restarts.remove((server, at))
            if todo and due is None and len(lines(outcome.out / "metrics.jsonl")) >= todo[0].step:
                due = now + todo[0].delay
            if todo and due is not None and now >= due and (pids := running.victims(todo[0])):
                kill, due = todo.pop(0), None
                pid = rng.choice(pids)
                os.kill(pid, signal.SIGKILL)
                kill.progress = {"after_step": len(lines(outcome.out / "metrics.jsonl"))}
                outcome.kills.append(kill)
                for server in servers:
                    if server.process.pid == pid:
                        server.process.wait()
                        restarts.append((server, now + rng.uniform(0.0, 1.0)))
            if (code := running.controller.poll()) is not None:
                outcome.failures += running.wait_until_gone()
                if code == 0:
                    break
                if not outcome.kills:
                    outcome.failures.append(f"it ended with {code} though nothing was killed")
                    break
                running.start()
            time.sleep(POLL)
        else:
            outcome.failures.append(f"it did not end within {LONGEST:g} s")
    finally:
        for server, _ in restarts:
            server.start()
        outcome.failures += running.close()
        outcome.starts, outcome.seconds = running.starts, time.monotonic() - start
    if leftovers := [path.name for path in (out / "weights").iterdir()]:
        outcome.failures.append(f"published weights were left behind: {leftovers}")
    return outcome
