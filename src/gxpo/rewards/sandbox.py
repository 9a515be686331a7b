"""Running a program that nobody has read: the protocol, and a sandbox of processes on this machine."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Protocol

from gxpo.errors import ConfigError

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
PROGRAM = "main.py"  # the file that is run
LOOK = 0.05  # seconds between two counts of a sandbox's processes
STARTING = 10.0  # seconds that the sandbox itself may take beyond the program's wall clock


@dataclass(frozen=True)
class Limits:
    """What a program may use. Beyond it, it is ended.

    wall       seconds;   cpu  seconds of each process
    memory     bytes of address space of each process: an allocation beyond fails inside the program
    processes  at a time, the program's own included; where the kernel counts them, with their threads
    output     bytes of stdout and stderr together;   file_size  bytes of any one file
    """

    wall: float = 5.0
    cpu: int = 5
    memory: int = 512 << 20
    processes: int = 16
    output: int = 1 << 16
    file_size: int = 1 << 20

    def __post_init__(self) -> None:
        for name, least in (("wall", 0.0), ("cpu", 1), ("memory", 1 << 24), ("processes", 1), ("output", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least or value <= 0:
                raise ConfigError(f"sandbox: {name}={value!r} is too little: give at least {max(least, 0.1):g}")


USUAL = Limits()


@dataclass(frozen=True)
class Result:
    """What came of a program.

    status  "ok" it ended with exit code 0; "failed" with another, or by a signal; "timeout" wall clock or CPU time;
            "processes", "output" it went beyond those limits; "broken" the sandbox could not run it: `stderr` says why,
            and nothing is known about the program
    seconds  wall clock
    """

    status: str
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


class Sandbox(Protocol):
    """Where programs are run. Called from several threads at once."""

    def run(self, files: Mapping[str, str], stdin: str = "", limits: Limits = USUAL) -> Result:
        """Run `files["main.py"]`, with the other files beside it, by Python; never raises for what a program does."""
        ...

    def check(self) -> None:
        """`ConfigError` where it can't run anything, saying what to do."""
        ...


@dataclass(frozen=True)
class Held:
    """What the kernel let a local sandbox have of its own."""

    network: bool = False  # no interface but a loopback that is down
    processes: bool = False  # it sees no process of others, and all of its own end with it
    files: bool = False  # it can write nowhere but in its directory
    number: bool = False  # the kernel counts its processes; else a watcher does, which a fork bomb can outrun


@dataclass(frozen=True)
class Local:
    """Programs as processes of this user, each in a fresh directory that is removed afterwards.

    python  the interpreter;   packages  whether it finds installed packages (off: the standard library alone; faster)

    What holds everywhere: a session and process group of its own, killed whole; limits of `Limits` by rlimit; output
    cut off; an environment of five variables, nothing of the caller's; no standard input but what is given; no open
    files of the caller's. What is tried, and said by `held()`: no network, its own process numbers, a file system that
    is read-only but for its directory, a number of processes that the kernel limits (Linux, where users may make
    namespaces). Under root the program is a user that does not exist, who may read what root may and write nothing.

    What it does not protect against: a program reads every file that you can read, your keys included, and sees the
    machine's time, names and load. It can reach local services through socket files (/var/run/docker.sock, if you may).
    Where `held().network` is False it has the network; where `held().files` is False it can write and delete what you
    can (but not under root); where `held().processes` is False it can signal your processes and leave some behind;
    where `held().number` is False a watcher counts processes, and a fork bomb can outrun it. Memory is limited for each
    process, not for the sum, and disk space for each file. It is no wall against somebody who looks for a hole in the
    kernel. For programs of a policy that you train yourself that is usually enough; where it is not, use `Docker` or a
    virtual machine.
    """

    python: str = sys.executable
    packages: bool = False

    def check(self) -> None:
        if os.name != "posix":
            raise ConfigError("the local sandbox needs Linux or macOS: set scoring.options.code.sandbox to docker")
        result = self.run({PROGRAM: "print('ready')"}, limits=Limits(wall=20.0, cpu=20))
        if result.status != "ok" or result.stdout.strip() != "ready":
            raise ConfigError(
                f"the local sandbox can't run Python here ({result.status}: {result.stderr.strip()[-200:]})"
            )

    def held(self) -> Held:
        """What the kernel allows here; tried once."""
        return _held(self.python)

    def run(self, files: Mapping[str, str], stdin: str = "", limits: Limits = USUAL) -> Result:
        with contextlib.ExitStack() as stack:
            try:
                directory = stack.enter_context(fresh_directory(files))
                given = stack.enter_context(tempfile.TemporaryFile())
                given.write(stdin.encode("utf-8", "replace"))
                given.seek(0)
                run = _Run(self, directory, given, limits)
            except OSError as error:
                return Result("broken", stderr=f"{type(error).__name__}: {error}")
            stack.callback(run.close)
            return run.watch()

    def command(self) -> list[str]:
        """What is executed in the directory."""
        return [self.python, "-E", "-s", "-B", *([] if self.packages else ["-S"]), PROGRAM]


@cache
def _held(python: str) -> Held:
    with fresh_directory({PROGRAM: ""}) as directory, tempfile.TemporaryFile() as nothing:
        run = _Run(Local(python), directory, nothing, Limits(wall=20.0))
        try:
            run.watch()
        finally:
            run.close()
        return Held(**dict.fromkeys(run.held, True))


@contextlib.contextmanager
def fresh_directory(files: Mapping[str, str], *, readable: bool = False) -> Iterator[str]:
    """A new directory with these files in it, removed at the end; `readable`: by other users."""
    directory = tempfile.mkdtemp(prefix="gxpo-sandbox-")
    try:
        if readable:
            os.chmod(directory, 0o755)
        for name, text in files.items():
            if Path(name).name != name:
                raise ValueError(f"a sandbox's files stand beside each other: {name!r} does not")
            Path(directory, name).write_text(text, encoding="utf-8", errors="replace")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass
class _Run:
    """One program on its way."""

    local: Local
    directory: str
    stdin: IO[bytes]
    limits: Limits
    held: tuple[str, ...] = ()
    ended: bool = False

    def __post_init__(self) -> None:
        self.begun = time.monotonic()
        most = self.limits
        numbers = [str(int(n)) for n in (most.cpu, most.memory, most.file_size, most.processes)]
        environment = {
            "PATH": os.defpath,
            "HOME": self.directory,
            "TMPDIR": self.directory,
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": "0",
        }
        self.report, theirs = os.pipe()
        try:
            self.process = subprocess.Popen(
                [
                    *(self.local.python, "-I", "-S", "-B", LAUNCHER, str(theirs), self.directory),
                    *numbers,
                    *self.local.command(),
                ],
                stdin=self.stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.directory,
                env=environment,
                pass_fds=[theirs],
                start_new_session=True,
            )
        except BaseException:
            os.close(self.report)
            raise
        finally:
            os.close(theirs)

    def watch(self) -> Result:
        """Wait for the end, or bring it about."""
        assert self.process.stdout is not None and self.process.stderr is not None
        pipes = {"stdout": self.process.stdout.fileno(), "stderr": self.process.stderr.fileno(), "report": self.report}
        got = {name: bytearray() for name in pipes}
        ended: str | None = None
        looked = self.begun
        with selectors.DefaultSelector() as ready:
            for name, number in pipes.items():
                os.set_blocking(number, False)
                ready.register(number, selectors.EVENT_READ, name)
            while ready.get_map() and ended is None:
                for key, _ in ready.select(LOOK):
                    piece = _read(key.fd)
                    if piece:
                        got[key.data] += piece
                    else:
                        ready.unregister(key.fd)
                now = time.monotonic()
                if len(got["stdout"]) + len(got["stderr"]) > self.limits.output:
                    ended = "output"
                elif now - self.begun > self.limits.wall + (0.0 if b"\n" in got["report"] else STARTING):
                    ended = "timeout"
                elif b"\nended" in got["report"] and self._exited():
                    break  # something the program left behind may hold its output open
                elif now - looked >= LOOK:
                    looked = now
                    if len(descendants(self.process.pid)) > self.limits.processes + 3:  # launcher, first, a shell
                        ended = "processes"
        self.kill()
        for name, number in pipes.items():  # what was written before the end
            while len(got[name]) <= self.limits.output and (piece := _read(number)):
                got[name] += piece
        return self._result(ended, got, time.monotonic() - self.begun)

    def _result(self, ended: str | None, got: Mapping[str, bytearray], seconds: float) -> Result:
        said = bytes(got["report"]).decode("utf-8", "replace").splitlines()
        facts = {word: rest for word, _, rest in (line.partition(" ") for line in said)}
        out, err = (got[name][: self.limits.output].decode("utf-8", "replace") for name in ("stdout", "stderr"))
        self.held = tuple(facts.get("held", "").split())
        if "error" in facts or "held" not in facts:
            return Result("broken", out, facts.get("error") or err.strip() or "its launcher died", seconds)
        if ended is not None:
            return Result(ended, out, err, seconds)
        if "ended" not in facts:
            return Result("failed", out, err, seconds)  # it killed who waited for it
        code = os.waitstatus_to_exitcode(int(facts["ended"]))
        if code in (-signal.SIGXCPU, -signal.SIGKILL):  # nobody else in there sends it a SIGKILL but the CPU limit
            return Result("timeout", out, err, seconds)
        return Result("ok" if code == 0 else "failed", out, err, seconds)

    def kill(self) -> None:
        """End all that the program has started, and close what was open."""
        if self.ended:
            return
        self.ended = True
        family = descendants(self.process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for number in family:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """`kill`, and close what was open."""
        self.kill()
        os.close(self.report)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def _exited(self) -> bool:
        """Whether the launcher has ended; its number stays its own until `kill` has used it."""
        if not hasattr(os, "waitid"):
            return self.process.poll() is not None
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _read(number: int) -> bytes:
    try:
        return os.read(number, 1 << 16)
    except BlockingIOError:
        return b""


def descendants(root: int) -> list[int]:
    """Processes that `root` or its descendants have started, as Linux tells; none elsewhere."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
