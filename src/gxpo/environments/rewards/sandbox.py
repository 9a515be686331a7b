"""Sandboxes for untrusted programs: the protocol, and a local sandbox of isolated processes."""

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
TESTER_MODULES = tuple(
    module.__name__.rpartition(".")[2] for module in (wire, harness)
)  # copied into sandboxes that run tests
CHECK_INTERVAL = 0.05  # seconds between two counts of a sandbox's processes and files
PROBE = "import collections, decimal, hashlib, json, math, random, re, subprocess\nprint('ready')"
KILL_ROUNDS = 20  # of killing a program's processes, which may start more meanwhile
START_SECONDS = 10.0  # seconds for the sandbox's own start, beyond the program's wall clock


@cache
def module_source(name: str) -> str:
    """Source text of a module that is copied into sandboxes."""
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


DEFAULT_LIMITS = Limits()


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

    def run(self, files: Mapping[str, str], stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Result:
        """Run `files["main.py"]` by Python, the other files beside it; never raises for what a program does."""
        ...

    def check(self) -> None:
        """ConfigError, with the remedy, where the sandbox can't run programs."""
        ...


@dataclass(frozen=True)
class Isolation:
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

    Everywhere: a session and process group of its own, killed whole; limits of `Limits`, by rlimit or by a watcher;
    output cut off; an environment of five variables, nothing of the caller's; only `stdin` as standard input; no open
    files of the caller's; a directory that is removed whatever was put there. The rest depends on the kernel;
    `isolation()` reports it:

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
                raise ConfigError(
                    f"scoring.options.code.readable names {path}, which does not exist: correct or remove it"
                )
        # The interpreter is tried once: a library outside of the allowed paths fails here with a remedy.
        result = self.run({PROGRAM: PROBE}, limits=Limits(wall=20.0, cpu=20))
        if result.status != "ok" or result.stdout.strip() != "ready":
            raise ConfigError(
                f"the local sandbox can't run Python here ({result.status}: {result.stderr.strip()[-200:]}); if it may "
                "not read a library, name its directory in scoring.options.code.readable"
            )

    def isolation(self) -> Isolation:
        """Isolation that the kernel grants here; tried once."""
        return _probe_isolation(self.python)

    def run(self, files: Mapping[str, str], stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Result:
        with contextlib.ExitStack() as stack:
            try:
                directory = stack.enter_context(fresh_directory(files))
                stdin_file = stack.enter_context(tempfile.TemporaryFile())
                stdin_file.write(stdin.encode("utf-8", "replace"))
                stdin_file.seek(0)
                # Files of gxpo's own come compiled, which saves their parsing in every run.
                compiled = [name for name in TESTER_MODULES if files.get(f"{name}.py") == module_source(name)]
                run = _Run(self, directory, stdin_file, limits, " ".join(compiled))
            except OSError as error:
                return Result("broken", stderr=f"{type(error).__name__}: {error}")
            stack.callback(run.close)
            return run.watch()


@cache
def _probe_isolation(python: str) -> Isolation:
    """Run an empty program and return the isolation that its launcher reports."""
    with fresh_directory({PROGRAM: ""}) as directory, tempfile.TemporaryFile() as nothing:
        run = _Run(Local(python), directory, nothing, Limits(wall=20.0))
        try:
            run.watch()
        finally:
            run.close()
        return Isolation(**dict.fromkeys(run.isolation, True))


@dataclass
class _Run:
    """Run of one program: its processes, pipes and end."""

    local: Local
    directory: str
    stdin: IO[bytes]
    limits: Limits
    compiled: str = ""  # modules that the launcher imports from this folder, so that they are not compiled anew
    isolation: tuple[str, ...] = ()
    all_ended: bool = False  # nothing of it runs any more, where `isolation` has "processes"
    is_killed: bool = False

    def __post_init__(self) -> None:
        self.started = time.monotonic()
        most = self.limits
        numbers = (most.cpu, most.memory, most.file_size, most.processes, most.disk, most.entries, self.local.packages)
        # Nothing of the caller's environment: keys and paths there are none of the program's business.
        environment = {
            "PATH": os.defpath,
            "HOME": self.directory,
            "TMPDIR": self.directory,
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
        }
        # The launcher reports on one pipe; by the other it notices that this process is gone, and ends too.
        self.report, report_end = os.pipe()
        stay_end, self.stay = os.pipe()
        try:
            self.process = subprocess.Popen(
                [
                    *(self.local.python, "-s", "-S", "-B", "-c", launcher.START, str(FOLDER), self.compiled),
                    *(str(report_end), str(stay_end), *(str(int(n)) for n in numbers)),
                    *(self.directory, *map(os.path.abspath, self.local.readable)),
                ],
                stdin=self.stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.directory,
                env=environment,
                pass_fds=[report_end, stay_end],
                start_new_session=True,
            )
        except BaseException:
            os.close(self.report)
            os.close(self.stay)
            raise
        # Whatever happens, the child's ends are closed here, or the report would never end.
        finally:
            os.close(report_end)
            os.close(stay_end)

    def watch(self) -> Result:
        """Wait for the end, or kill the program at a limit; return the result."""
        assert self.process.stdout is not None and self.process.stderr is not None
        pipes = {"stdout": self.process.stdout.fileno(), "stderr": self.process.stderr.fileno(), "report": self.report}
        chunks = {name: bytearray() for name in pipes}
        kill_reason: str | None = None
        last_check = self.started
        # All pipes are read at once: a program that fills one while another is read would never end.
        with selectors.DefaultSelector() as selector:
            for name, number in pipes.items():
                os.set_blocking(number, False)
                selector.register(number, selectors.EVENT_READ, name)
            while not self.all_ended and kill_reason is None and self.report in selector.get_map():
                for key, _ in selector.select(CHECK_INTERVAL):
                    piece = _read(key.fd)
                    if piece:
                        chunks[key.data] += piece
                    else:
                        selector.unregister(key.fd)
                self.all_ended = b"\nover" in chunks["report"]
                now = time.monotonic()
                if len(chunks["stdout"]) + len(chunks["stderr"]) > self.limits.output:
                    kill_reason = "output"
                elif self.all_ended:
                    break
                # The clock of the program starts with the launcher's first line; before it, the sandbox starts.
                elif now - self.started > self.limits.wall + (0.0 if b"\n" in chunks["report"] else START_SECONDS):
                    kill_reason = "timeout"
                elif now - last_check >= CHECK_INTERVAL:
                    last_check = now
                    kill_reason = self._exceeded_limit(bytes(chunks["report"]))
        self.isolation = tuple(_report_lines(chunks["report"]).get("held", "").split())
        # Killed before the rest is read: a process that is left could go on writing.
        self.kill()
        for name, number in pipes.items():  # what was written before the end
            while len(chunks[name]) <= self.limits.output and (piece := _read(number)):
                chunks[name] += piece
        return self._result(kill_reason, chunks, time.monotonic() - self.started)

    def _exceeded_limit(self, report: bytes) -> str | None:
        """Name of a limit that the program exceeds and the kernel does not enforce; None without one."""
        if len(descendants(self.process.pid)) > self.limits.processes + 3:  # launcher, first, a shell
            return "processes"
        isolation = _report_lines(report).get("held")
        if isolation is None or "space" in isolation.split():
            return None
        return "disk" if exceeds(self.directory, self.limits.disk, self.limits.entries) else None

    def _result(self, kill_reason: str | None, chunks: Mapping[str, bytearray], seconds: float) -> Result:
        """Result from the kill reason, the launcher's report and the program's output."""
        facts = _report_lines(chunks["report"])
        out, err = (chunks[name][: self.limits.output].decode("utf-8", "replace") for name in ("stdout", "stderr"))
        # Without a report nothing is known about the program: no verdict.
        if "error" in facts or "held" not in facts:
            return Result("broken", out, facts.get("error") or err.strip() or "its launcher died", seconds)
        if kill_reason is not None:
            return Result(kill_reason, out, err, seconds)
        if "ended" not in facts:
            return Result("failed", out, err, seconds)  # it killed its parent
        code = os.waitstatus_to_exitcode(int(facts["ended"]))
        if code in (-signal.SIGXCPU, -signal.SIGKILL):  # no other process in there sends it a SIGKILL but the CPU limit
            return Result("timeout", out, err, seconds)
        return Result("ok" if code == 0 else "failed", out, err, seconds)

    def kill(self) -> None:
        """Kill the program and all its processes; a second call does nothing."""
        if self.is_killed:
            return
        self.is_killed = True
        # In a namespace everything has ended with its first process.
        if not (self.all_ended and "processes" in self.isolation):
            # Processes may fork while they are killed: listed again until none is left.
            for _ in range(KILL_ROUNDS):  # the launcher, which its orphans come to, goes last
                family = descendants(self.process.pid)
                for number in family:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(number, signal.SIGKILL)
                if not family:
                    break
                time.sleep(0.001)
        # The launcher's group, for what has left its tree.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Kill the program, and close the pipes."""
        self.kill()
        os.close(self.report)
        os.close(self.stay)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def _report_lines(report: bytes | bytearray) -> dict[str, str]:
    """Lines of the launcher's report, by their first word."""
    lines = bytes(report).decode("utf-8", "replace").splitlines()
    return {word: content for word, _, content in (line.partition(" ") for line in lines)}


def _read(number: int) -> bytes:
    """Read the content of a non-blocking pipe; b"" if it is empty."""
    try:
        return os.read(number, 1 << 16)
    except BlockingIOError:
        return b""
