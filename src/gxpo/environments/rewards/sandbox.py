"""Sandbox for untrusted programs: the protocol, and a local one based on processes."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Protocol

from gxpo.base.errors import ConfigError
from gxpo.base.process_tree import descendants
from gxpo.environments.rewards import harness, launcher, wire
from gxpo.environments.rewards.launcher import PROGRAM
from gxpo.environments.rewards.scratch import exceeds, fresh_directory

FOLDER = Path(__file__).parent  # of the launcher
OWN = tuple(module.__name__.rpartition(".")[2] for module in (wire, harness))  # copied into sandboxes that test
LOOK = 0.05  # seconds between two counts of a sandbox's processes and files
CHECK = "import collections, decimal, hashlib, json, math, random, re, subprocess\nprint('ready')"
ROUNDS = 20  # of killing what a program has started, which may start more meanwhile
STARTING = 10.0  # seconds that the sandbox itself may take beyond the program's wall clock


@cache
def own_file(name: str) -> str:
    """Source of a module that is copied into sandboxes."""
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Limits:
    """Resource limits of a program; it is killed beyond them.

    wall       seconds;   cpu  seconds of each process
    memory     bytes of address space of each process: an allocation beyond fails inside the program
    processes  at a time, the program's own included; where the kernel counts them, with their threads
    output     bytes of stdout and stderr together
    file_size  bytes of any one file;   disk  of all files in its directory;   entries  files and directories there
    """

    wall: float = 5.0
    cpu: int = 5
    memory: int = 512 << 20
    processes: int = 16
    output: int = 1 << 16
    file_size: int = 1 << 20
    disk: int = 1 << 24
    entries: int = 1024

    def __post_init__(self) -> None:
        for name, least in (("wall", 0.0), ("cpu", 1), ("memory", 1 << 24), ("processes", 1), ("output", 1),
                            ("disk", 1 << 16), ("entries", 8)):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least or value <= 0:
                raise ConfigError(f"sandbox: {name}={value!r} is too little: give at least {max(least, 0.1):g}")


USUAL = Limits()


@dataclass(frozen=True)
class Result:
    """Result of a program.

    status  "ok" it ended with exit code 0; "failed" with another, or by a signal; "timeout" wall clock or CPU time;
            "processes", "output", "disk" it went beyond those limits (where the kernel holds `disk`, there is no space
            left instead); "broken" the sandbox could not run it: `stderr` says why, and nothing is known about it
    seconds  wall clock
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


class Sandbox(Protocol):
    """Protocol of sandboxes. Thread-safe: called from several threads at once."""

    def run(self, files: Mapping[str, str], stdin: str = "", limits: Limits = USUAL) -> Result:
        """Run `files["main.py"]` by Python, with the other files next to it; never raises for what a program does."""
        ...

    def check(self) -> None:
        """ConfigError, with what to do, where the sandbox can't run programs."""
        ...


@dataclass(frozen=True)
class Held:
    """Isolation that the kernel grants to a local sandbox."""

    network: bool = False  # no interface but a loopback that is down
    processes: bool = False  # it can signal no process of others, and all of its own end with it
    files: bool = False  # it can write nowhere but in its directory
    reads: bool = False  # it can read nothing but its directory, the interpreter and the system's libraries
    number: bool = False  # the kernel counts its processes; else a watcher does, which a fork bomb can outrun
    space: bool = False  # its directory has a size that the kernel holds; else a watcher measures it


@dataclass(frozen=True)
class Local:
    """Programs as processes of this user, each in a fresh directory that is removed afterwards.

    python    the interpreter
    packages  whether it finds installed packages (off: the standard library alone; faster)
    readable  files and directories that programs may read besides their own, the interpreter's and the system's

    What holds everywhere: a session and process group of its own, killed whole; limits of `Limits`, by rlimit or by a
    watcher; output cut off; an environment of five variables, nothing of the caller's; no standard input but what is
    given; no open files of the caller's; a directory that is removed whatever was put there. What is tried, and said by
    `held()`, is up to the kernel:

    Linux with user namespaces    no network; its own process numbers; a file system that is read-only but for its
                                  directory, which is in memory and of limited size; a limited number of processes
    Linux 5.13 with Landlock      it reads its directory, the interpreter's, /usr, /lib, /proc and a few files of /etc
                                  and /sys, and writes its directory (nor truncates others, from 6.2 on); it can't look
                                  into other processes; no TCP (from 6.7 on), no signals to others (from 6.12 on)
    Linux as root                 it is a user that does not exist, another one each time; without Landlock it may read
                                  what root may if the interpreter is root's alone
    macOS                         none of these

    What stays open everywhere: what lies in the directories that it reads (keep no hidden tests in /usr or in the
    interpreter's); local services with socket files (/var/run/docker.sock, if you may); the machine's time, names and
    load. Where `reads` is False it reads every file that you can: hidden tests on disk, keys, programs of other
    rollouts; where `processes` is False, too, also the memory of your processes, unless you are root. Where `files` is
    False it writes and deletes what you can (root: what all users can); with Landlock alone it still changes modes and
    times. Where `network` is False it has the network; where `processes` is False it can signal your processes and, on
    macOS, leave some behind. Where `number` or `space` is False a watcher looks every 0.05 s, which can be outrun.
    Memory is limited for each process, not for the sum. It is no protection from attacks on the
    kernel. For programs of a policy that you train yourself that is usually enough; where it is not, use `Docker` or a
    virtual machine.
    """

    python: str = sys.executable
    packages: bool = False
    readable: tuple[str, ...] = ()

    def check(self) -> None:
        if os.name != "posix":
            raise ConfigError("the local sandbox needs Linux or macOS: set scoring.options.code.sandbox to docker")
        for path in self.readable:
            if not os.path.exists(path):
                raise ConfigError(f"the local sandbox is to let programs read {path}, which does not exist")
        result = self.run({PROGRAM: CHECK}, limits=Limits(wall=20.0, cpu=20))
        if result.status != "ok" or result.stdout.strip() != "ready":
            raise ConfigError(
                f"the local sandbox can't run Python here ({result.status}: {result.stderr.strip()[-200:]}); if it may "
                "not read a library, name its directory in scoring.options.code.readable"
            )

    def held(self) -> Held:
        """Isolation that the kernel grants here; tried once."""
        return _held(self.python)

    def run(self, files: Mapping[str, str], stdin: str = "", limits: Limits = USUAL) -> Result:
        with contextlib.ExitStack() as stack:
            try:
                directory = stack.enter_context(fresh_directory(files))
                given = stack.enter_context(tempfile.TemporaryFile())
                given.write(stdin.encode("utf-8", "replace"))
                given.seek(0)
                compiled = [name for name in OWN if files.get(f"{name}.py") == own_file(name)]
                run = _Run(self, directory, given, limits, " ".join(compiled))
            except OSError as error:
                return Result("broken", stderr=f"{type(error).__name__}: {error}")
            stack.callback(run.close)
            return run.watch()


@cache
def _held(python: str) -> Held:
    with fresh_directory({PROGRAM: ""}) as directory, tempfile.TemporaryFile() as nothing:
        run = _Run(Local(python), directory, nothing, Limits(wall=20.0))
        try:
            run.watch()
        finally:
            run.close()
        return Held(**dict.fromkeys(run.held, True))


@dataclass
class _Run:
    """One program on its way."""

    local: Local
    directory: str
    stdin: IO[bytes]
    limits: Limits
    compiled: str = ""  # which of its files the launcher imports from this folder: they are not compiled anew
    held: tuple[str, ...] = ()
    over: bool = False  # nothing of it runs any more, where `held` says that its processes end with it
    ended: bool = False

    def __post_init__(self) -> None:
        self.begun = time.monotonic()
        most = self.limits
        numbers = (most.cpu, most.memory, most.file_size, most.processes, most.disk, most.entries, self.local.packages)
        environment = {
            "PATH": os.defpath,
            "HOME": self.directory,
            "TMPDIR": self.directory,
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
        }
        self.report, theirs = os.pipe()
        stay, self.stay = os.pipe()  # closed when this process is gone, however that happens
        try:
            self.process = subprocess.Popen(
                [
                    *(self.local.python, "-s", "-S", "-B", "-c", launcher.START, str(FOLDER), self.compiled),
                    *(str(theirs), str(stay), *(str(int(n)) for n in numbers)),
                    *(self.directory, *map(os.path.abspath, self.local.readable)),
                ],
                stdin=self.stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.directory,
                env=environment,
                pass_fds=[theirs, stay],
                start_new_session=True,
            )
        except BaseException:
            os.close(self.report)
            os.close(self.stay)
            raise
        finally:
            os.close(theirs)
            os.close(stay)

    def watch(self) -> Result:
        """Wait for the end, or kill the program at a limit."""
        assert self.process.stdout is not None and self.process.stderr is not None
        pipes = {"stdout": self.process.stdout.fileno(), "stderr": self.process.stderr.fileno(), "report": self.report}
        got = {name: bytearray() for name in pipes}
        ended: str | None = None
        looked = self.begun
        with selectors.DefaultSelector() as ready:
            for name, number in pipes.items():
                os.set_blocking(number, False)
                ready.register(number, selectors.EVENT_READ, name)
            while not self.over and ended is None and self.report in ready.get_map():
                for key, _ in ready.select(LOOK):
                    piece = _read(key.fd)
                    if piece:
                        got[key.data] += piece
                    else:
                        ready.unregister(key.fd)
                self.over = b"\nover" in got["report"]
                now = time.monotonic()
                if len(got["stdout"]) + len(got["stderr"]) > self.limits.output:
                    ended = "output"
                elif self.over:
                    break
                elif now - self.begun > self.limits.wall + (0.0 if b"\n" in got["report"] else STARTING):
                    ended = "timeout"
                elif now - looked >= LOOK:
                    looked = now
                    ended = self._too_much(bytes(got["report"]))
        self.held = tuple(_facts(got["report"]).get("held", "").split())
        self.kill()
        for name, number in pipes.items():  # what was written before the end
            while len(got[name]) <= self.limits.output and (piece := _read(number)):
                got[name] += piece
        return self._result(ended, got, time.monotonic() - self.begun)

    def _too_much(self, report: bytes) -> str | None:
        """Which limit that the kernel does not hold has been passed."""
        if len(descendants(self.process.pid)) > self.limits.processes + 3:  # launcher, first, a shell
            return "processes"
        held = _facts(report).get("held")
        if held is None or "space" in held.split():
            return None
        return "disk" if exceeds(self.directory, self.limits.disk, self.limits.entries) else None

    def _result(self, ended: str | None, got: Mapping[str, bytearray], seconds: float) -> Result:
        facts = _facts(got["report"])
        out, err = (got[name][: self.limits.output].decode("utf-8", "replace") for name in ("stdout", "stderr"))
        if "error" in facts or "held" not in facts:
            return Result("broken", out, facts.get("error") or err.strip() or "its launcher died", seconds)
        if ended is not None:
            return Result(ended, out, err, seconds)
        if "ended" not in facts:
            return Result("failed", out, err, seconds)  # it killed its parent
        code = os.waitstatus_to_exitcode(int(facts["ended"]))
        if code in (-signal.SIGXCPU, -signal.SIGKILL):  # no other process in there sends it a SIGKILL but the CPU limit
            return Result("timeout", out, err, seconds)
        return Result("ok" if code == 0 else "failed", out, err, seconds)

    def kill(self) -> None:
        """Kill the program and all its processes."""
        if self.ended:
            return
        self.ended = True
        if not (self.over and "processes" in self.held):
            for _ in range(ROUNDS):  # the launcher, which its orphans come to, goes last
                family = descendants(self.process.pid)
                for number in family:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(number, signal.SIGKILL)
                if not family:
                    break
                time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """`kill`, and close what was open."""
        self.kill()
        os.close(self.report)
        os.close(self.stay)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def _facts(report: bytes | bytearray) -> dict[str, str]:
    """What the launcher has said, by the first word of each line."""
    said = bytes(report).decode("utf-8", "replace").splitlines()
    return {word: rest for word, _, rest in (line.partition(" ") for line in said)}


def _read(number: int) -> bytes:
    try:
        return os.read(number, 1 << 16)
    except BlockingIOError:
        return b""
