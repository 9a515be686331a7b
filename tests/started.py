"""Processes of Python that begin where torch, transformers and gxpo are imported: each is forked from one process that
has done nothing but import them, which saves seconds of every test that kills a run or trains in several processes.

What a process finds in its memory apart from that is what it finds after `python ARGUMENTS`: arguments, environment,
directory, `__main__`. Tests of what a process imports, and one of each way to start gxpo, begin with `sys.executable`.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TextIO

import pytest

ROOT = Path(__file__).parents[1]
IMPORTED = (
    "pytest", "gxpo.cli.app", "gxpo.methods", "gxpo.parts.registry", "gxpo.training.train", "gxpo.training.loop",
    "gxpo.learning.torch",
    "gxpo.learning.sharded", "gxpo.models.tiny", "torch.distributed.fsdp", "transformers.models.llama.modeling_llama",
    "transformers.models.auto.modeling_auto", "transformers.modeling_utils", "transformers.loss.loss_utils",
    "transformers.models.auto.tokenization_auto",
)  # fmt: skip


class _Forked:
    """What has been forked, as `subprocess.Popen` shows a process."""

    args: list[str]
    pid: int
    returncode: int | None = None
    _end: TextIO  # says how it ended

    def poll(self) -> int | None:
        return None if self.returncode is None and not select.select([self._end], [], [], 0)[0] else self.wait()

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(int(self._end.readline()))
            self._end.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Popen(_Forked):
    """In the place of `subprocess.Popen` of `PYTHON [-I] ARGUMENTS`; see `forking`. An argument that is the id of this
    process, with whom the program is to end, becomes that of the process that it is forked from."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int,
        stdout: Any,
        stderr: Any = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        assert stdin == subprocess.DEVNULL and os.path.samefile(arguments[0], sys.executable)
        _serving()
        assert _server is not None
        parent = {str(os.getpid()): str(_server[1].pid)}
        self.args = [parent.get(a, a) for a in arguments[1:] if a != "-I"]
        with open(os.devnull, "r+b") as nothing:
            outputs = (
                2 if file is None else nothing if file == subprocess.DEVNULL else file for file in (stdout, stderr)
            )
            own_filenos = [nothing.fileno(), *(f if isinstance(f, int) else f.fileno() for f in outputs)]
            files = dict(enumerate(own_filenos)) | {number: number for number in pass_fds}
            self.pid, self._end = _fork(self.args, files, env, None, start_new_session)


@contextlib.contextmanager
def forking(*modules: Any) -> Iterator[None]:
    """Processes that these modules of gxpo start are forked."""
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Popen}))
        yield


class Started(_Forked):
    """Like `subprocess.Popen`, of `python ARGUMENTS`."""

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.args = [str(a) for a in arguments]
        ends = [os.pipe() for _ in range(3)]  # standard input, output, error
        theirs = [ends[0][0], ends[1][1], ends[2][1]]
        self.pid, self._end = _fork(self.args, dict(enumerate(theirs)), env, cwd, start_new_session)
        for end in theirs:
            os.close(end)
        self.stdin = os.fdopen(ends[0][1], "w", buffering=1)
        self.stdout, self.stderr = (os.fdopen(r, "r") for r, _ in ends[1:])

    def communicate(self, input: str = "", timeout: float | None = None) -> tuple[str, str]:
        """All that it writes, until nobody holds its outputs."""
        if input:
            self.stdin.write(input)
        self.stdin.close()
        until = None if timeout is None else time.monotonic() + timeout
        read: dict[int, bytes] = {self.stdout.fileno(): b"", self.stderr.fileno(): b""}
        open_ = list(read)
        while open_:
            left = None if until is None else max(0.0, until - time.monotonic())
            ready = select.select(open_, [], [], left)[0]
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            for descriptor in ready:
                more = os.read(descriptor, 1 << 16)
                read[descriptor] += more
                if not more:
                    open_.remove(descriptor)
        self.wait(None if until is None else max(0.0, until - time.monotonic()))
        out, err = (b.decode(errors="replace") for b in read.values())
        self.close()
        return out, err

    def close(self) -> None:
        for file in (self.stdin, self.stdout, self.stderr, self._end):
            file.close()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.kill()
            self.wait()
        finally:
            self.close()


def run(
    arguments: Sequence[object], *, input: str = "", timeout: float = 300, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`."""
    with Started(arguments, **more) as process:
        out, err = process.communicate(input, timeout)
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def ranks(
    world: int, arguments: Sequence[object], *, timeout: float = 240, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """So many processes that torchrun might have started; what all of them say, and the first code that is not 0."""
    with socket.socket() as actual:
        actual.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(actual.getsockname()[1]), **more}
    shared |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(Started(arguments, env={**os.environ, **shared, **own_setting}, cwd=cwd))
            for own_setting in ({"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(world))
        ]
        outs, errors = zip(*(process.communicate(timeout=timeout) for process in processes), strict=True)
    code = next((p.returncode for p in processes if p.returncode), 0)
    return subprocess.CompletedProcess([str(a) for a in arguments], code, "".join(outs), "".join(errors))


# ---------------------------------------------------------------- the process that they are forked from
_server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None


def _fork(
    arguments: Sequence[str],
    files: Mapping[int, int],
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    session: bool,
) -> tuple[int, TextIO]:
    """Id of a new process with these files, by the numbers that they have there, and who says how it ended."""
    asked_fields = {
        "arguments": list(arguments),
        "files": list(files),
        "env": dict(os.environ if env is None else env),
        "cwd": str(cwd or os.getcwd()),
        "session": session,
    }
    ours, theirs = os.pipe()
    _ask(json.dumps(asked_fields).encode(), [theirs, *files.values()])
    os.close(theirs)
    end = os.fdopen(ours, "r")
    return int(end.readline()), end


def _ask(message: bytes, descriptors: list[int]) -> None:
    """Send a message of any length with descriptors to the server."""
    _serving()
    assert _server is not None
    line = _server[0]
    line.sendmsg(
        [len(message).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    )
    line.sendall(message)


def _serving() -> None:
    """Start the server on first use."""
    global _server
    if _server is None or _server[1].poll() is not None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        command = [sys.executable, str(Path(__file__)), str(theirs.fileno())]
        # its output is that of the first process of the tests, which may not be captured by now
        process = subprocess.Popen(
            command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT
        )
        theirs.close()
        _server = ours, process
        atexit.register(_end, ours, process)


def _end(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    line.close()
    process.wait()


def _serve(descriptor: int) -> None:
    """Fork a process for each message; returns in a forked one never, in this one when the other end is closed."""
    import gc
    import importlib

    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    line = socket.socket(fileno=descriptor)
    wake = os.pipe()
    for end in wake:
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake[1])
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    while True:
        ready = select.select([line, wake[0]], [], [])[0]
        if wake[0] in ready:
            os.read(wake[0], 1 << 12)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    end = running.pop(pid)
                    os.write(end, f"{status}\n".encode())
                    os.close(end)
        if line not in ready:
            continue
        size, actual, _, _ = socket.recv_fds(line, 4, 16)
        if not size:
            return
        message = b""
        while len(message) < int.from_bytes(size, "big"):
            message += line.recv(1 << 16)
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            line.close()
            for end in (*wake, *running.values(), actual[0]):
                os.close(end)
            _be(actual[1:], **json.loads(message))
        running[pid] = actual[0]
        os.write(actual[0], f"{pid}\n".encode())
        for end in actual[1:]:
            os.close(end)


def _be(
    given: list[int], arguments: list[str], files: list[int], env: dict[str, str], cwd: str, session: bool
) -> NoReturn:
    """Do what `python ARGUMENTS` does, with the given descriptors under the numbers `files`, and end."""
    import runpy

    above = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, max(files) + 1) for one in given]
    for one in given:
        os.close(one)
    for one, number in zip(above, files, strict=True):
        os.dup2(one, number)
        os.close(one)
    if session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    own_envs = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:] = [*own_envs, *(p for p in sys.path[1:] if p not in own_envs)]
    kind, rest = arguments[0], arguments[1:]
    if kind == "-m":
        sys.path.insert(0, cwd)
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        module = type(sys)("__main__")
        sys.modules["__main__"] = module
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    else:
        sys.path.insert(0, str(Path(kind).parent))
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
