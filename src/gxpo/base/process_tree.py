"""Process trees: list the descendants of a process, and end all of them.

Linux gives orphans to the nearest ancestor that asked for them (PR_SET_CHILD_SUBREAPER), so a daemon in a session of
its own stays in the tree. Elsewhere an orphan's parent is the first process of the machine: such a daemon escapes, and
what is still in the tree ends. Run by its path, this file is the guard of a command, in an interpreter without site
packages; the command's line tells it where psutil is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import psutil

ROUNDS = 100  # looks for new processes; each stops what it finds, so only a fork bomb that outruns them needs many
REAPING = 1.0  # seconds
SUBREAPER, DIE_WITH_PARENT = 36, 1  # options of prctl
IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")  # names: Windows has not all of them


def descendants(root: int) -> list[int]:
    """Return the ids of the living descendants of the process `root`; none where it has ended."""
    import psutil  # at the first call: the worker of a reward loads this module, and most of them end nothing

    try:
        children = psutil.Process(root).children(recursive=True)
    except psutil.Error:
        return []
    return [child.pid for child in children if _is_alive(child)]


def is_running(pid: int) -> bool:
    """Return True if the process exists and has not ended: a zombie has, though nobody has waited for it."""
    import psutil

    try:
        return _is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def _is_alive(process: psutil.Process) -> bool:
    import psutil

    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # another user's
        return True


def end_descendants(root: int) -> None:
    """Kill all descendants of `root`."""
    _end_all(lambda: descendants(root))


def _end_all(find: Callable[[], Iterable[int]]) -> None:
    """Kill the processes that `find` gives; all are stopped first, so that they start no others in the meantime."""
    stopped: set[int] = set()
    # a process may have started others before it was stopped: listed again until no new one appears
    for _ in range(ROUNDS):
        new = set(find()) - stopped
        if not new:
            break
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def end_tree(root: int) -> None:
    """Kill `root`, a child of this process that leads a process group, with its group and all its descendants."""
    end_descendants(root)
    end_group(root)


def end_group(root: int) -> None:
    """Kill the process group that `root` leads, or led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)


def end_carriers(text: str) -> None:
    """Kill the processes that began with `text` in their environment, or in that of who started them (Linux)."""
    _end_all(lambda: _carriers(text))


def _carriers(text: str) -> Iterator[int]:
    """Yield the ids of processes whose environment holds `text`. psutil parses an environment, which may hold
    anything; here it is read as bytes."""
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if text.encode() in file.read():
                    yield int(entry)


def run_guarded(parent: int, report: int, words: list[str]) -> NoReturn:
    """Become the guard of a command (`guarded`); the number of the error goes to `report` where it can't be started.

    report  a file descriptor; -1: none, the exit status is 127
    """
    # the report must close in the program, which tells the parent that it has started
    if report >= 0:
        os.set_inheritable(report, False)
    guarded(parent, report)
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and a program would inherit that
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        if report >= 0:
            os.write(report, str(error.errno).encode())
    os._exit(127)


def guarded(parent: int, private: int) -> None:
    """Continue in a child of this process; this one stays behind and kills the child's descendants when the child ends,
    for whatever reason, or when `parent` is gone. Its exit status is the child's.

    To be called before there are threads, by the leader of a process group.

    private   a file descriptor that the child alone keeps; -1: none
    """
    # before the fork, so that whatever the child leaves behind becomes the guard's
    _prctl(SUBREAPER, 1)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _prctl(DIE_WITH_PARENT, signal.SIGKILL)
        leave_after(guard, lambda: os._exit(1))  # where the kernel does not see to it
        return
    if private >= 0:
        os.close(private)
    for name in IGNORED:  # meant for the group, and the child's to handle
        signal.signal(getattr(signal, name), signal.SIG_IGN)

    def end_all() -> None:
        end_descendants(guard)
        os.killpg(guard, signal.SIGKILL)

    # the parent may be killed without a chance to end its children
    leave_after(parent, end_all)
    ended_pid = status = 0
    while ended_pid != child:  # the others are orphans, to be reaped here
        ended_pid, status = os.waitpid(-1, 0)
    # orphans of the child became the guard's, and end with it
    end_descendants(guard)
    _reap()
    # die by the same signal, so that the parent reads the child's end from the guard's; no second core dump
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(guard, -code)
    os._exit(code)


def _reap() -> None:
    """Reap killed processes: the first process of a container may not, and they would stay zombies."""
    deadline = time.monotonic() + REAPING
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)


def leave_after(parent: int, leave: Callable[[], None]) -> None:
    """Call `leave` when the parent is gone, even while the program hangs."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        leave()

    threading.Thread(target=watch, daemon=True).start()


def _prctl(option: int, value: int) -> None:
    """Call Linux's prctl; elsewhere, and on failure, nothing changes."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def guard_command(parent: int, report: int, words: list[str]) -> list[str]:
    """Return the command line that runs `words` under a guard: no user's site hooks run before it."""
    import psutil

    packages = os.path.dirname(os.path.dirname(psutil.__file__))
    return [sys.executable, "-I", "-S", __file__, packages, str(parent), str(report), *words]


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    run_guarded(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
