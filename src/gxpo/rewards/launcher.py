"""The program that starts a sandboxed program: shuts it off as far as the kernel lets it, limits it, waits for it.

Run by path in a process of its own (`gxpo.rewards.sandbox` is the other side), with the program's environment:
`launcher.py REPORT DIRECTORY CPU MEMORY FILE_SIZE PROCESSES COMMAND...`. To the pipe with the number REPORT it writes a
line before the program starts, `held network files ...`, one when it has ended, `ended STATUS`, and where it could not
be started, `error REASON`. On the standard library alone, and on little of it: it starts once for every program.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

USER, NETWORK, PROCESSES, MOUNTS, IPC = 0x10000000, 0x40000000, 0x20000000, 0x00020000, 0x08000000
ATTEMPTS = (
    (USER | NETWORK | PROCESSES | MOUNTS | IPC, ("network", "processes", "files")),
    (USER | NETWORK | PROCESSES, ("network", "processes")),
    (USER | NETWORK, ("network",)),
)
HELD: tuple[str, ...] = ("network", "processes", "files", "number")
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
RDONLY, RECURSIVE, HERE, MOUNT_SETATTR = 1, 0x8000, -100, 442
NO_NEW_PRIVILEGES, SUBREAPER, DROP_BOUND, DIE_WITH_PARENT, KEEP, AMBIENT = 38, 36, 24, 1, 8, 47
READ_ALL, OVERRIDE = 2, 1  # capabilities: to read what root could read, where the interpreter is root's alone
COUNTS_BY_NAMESPACE = (5, 14)  # Linux from here on counts a user's processes in each user namespace by itself
STRANGER = 1 << 30  # above every user there is


def kernel() -> Any:
    """The C library, None where it is not Linux's."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError):
        return None


def unshared(libc: Any, directory: str, user: int) -> dict[str, bool]:
    """Which of network, processes and files are the sandbox's own from here on; all False where the kernel refuses.

    user  who the program will be: this process's own user or, under root, a stranger
    """
    held: dict[str, bool] = dict.fromkeys(HELD, False)
    own = os.getuid()
    owner = Mapper({own, user}, {os.getgid(), user if own == 0 else os.getgid()}) if own == 0 else None
    for flags, names in ATTEMPTS:
        if libc.unshare(flags) == 0:
            held |= dict.fromkeys(names, True)
            break
    if owner is not None:
        owner.map(held["network"])
    elif held["network"]:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{own} {own} 1")
        _write("/proc/self/gid_map", f"{os.getgid()} {os.getgid()} 1")
    held["files"] = held["files"] and _read_only(libc, directory)
    return held


class Mapper:
    """A process that stays outside, where root may say which users there are inside: more than one."""

    def __init__(self, users: set[int], groups: set[int]) -> None:
        waiting, self.line = os.pipe()
        self.outside = os.fork()
        if self.outside == 0:
            os.close(self.line)
            if os.read(waiting, 1):
                for name, ids in (("gid_map", groups), ("uid_map", users)):
                    _write(f"/proc/{os.getppid()}/{name}", "".join(f"{i} {i} 1\n" for i in sorted(ids)))
            os._exit(0)
        os.close(waiting)

    def map(self, needed: bool) -> None:
        os.write(self.line, b"x" if needed else b"")
        os.close(self.line)
        os.waitpid(self.outside, 0)


def closed(libc: Any, root: bool) -> None:
    """No new privileges by set-user-id programs; orphans of the program come here; no capability survives its start."""
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    for capability in range(64):
        if not (root and capability in (READ_ALL, OVERRIDE)):
            libc.prctl(DROP_BOUND, capability, 0, 0, 0)


def become(libc: Any, user: int) -> None:
    """Root turns into a stranger, whose processes the kernel counts; he may still read what root may."""
    import ctypes

    libc.prctl(KEEP, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    for capability in (READ_ALL, OVERRIDE):
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        only = 1 << capability
        if libc.capset(header, (ctypes.c_uint32 * 6)(only, only, only, 0, 0, 0)) == 0:
            libc.prctl(AMBIENT, 2, capability, 0, 0)
            return
    libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())


def _write(path: str, text: str) -> None:
    """Without a word where that is not allowed: what follows from it shows."""
    try:
        number = os.open(path, os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(number, text.encode())
    except OSError:
        pass
    finally:
        os.close(number)


def _read_only(libc: Any, directory: str) -> bool:
    """Every file system read-only but for `directory`; whether that worked."""
    import ctypes

    class Attributes(ctypes.Structure):
        _fields_ = [(n, ctypes.c_uint64) for n in ("attr_set", "attr_clr", "propagation", "userns_fd")]

    def change(path: bytes, recursive: int, add: int, take: int) -> bool:
        wanted = Attributes(add, take, 0, 0)
        size = ctypes.c_size_t(ctypes.sizeof(wanted))
        return libc.syscall(MOUNT_SETATTR, HERE, path, recursive, ctypes.byref(wanted), size) == 0

    place = os.fsencode(directory)
    return (
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
        and libc.mount(place, place, None, MS_BIND, None) == 0
        and change(b"/", RECURSIVE, RDONLY, 0)
        and change(place, 0, 0, RDONLY)
    )


def limited(cpu: int, memory: int, file_size: int, processes: int | None) -> None:
    """Limits of this process and what it starts, each process for itself; `processes` None: not by the kernel."""
    import resource

    def limit(kind: int, soft: int, hard: int | None = None) -> None:
        most = resource.getrlimit(kind)[1]
        hard = soft if hard is None else hard
        hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
        try:
            resource.setrlimit(kind, (min(soft, hard), hard))
        except (OSError, ValueError):
            return  # macOS knows limits that it does not hold

    limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    limit(resource.RLIMIT_AS, memory)
    limit(resource.RLIMIT_FSIZE, file_size)
    limit(resource.RLIMIT_NOFILE, 64)
    limit(resource.RLIMIT_CORE, 0)
    if processes is not None:
        limit(resource.RLIMIT_NPROC, processes)


def wait_for(start: Callable[[], None], report: int) -> None:
    """Start the program in a child, wait until it has ended, and say how."""
    child = os.fork()
    if child == 0:
        try:
            start()
        except BaseException as error:
            os.write(report, " ".join(f"error {type(error).__name__}: {error}".split()).encode() + b"\n")
        os._exit(127)
    for number in (0, 1, 2):
        os.close(number)  # what the program writes to ends when it does
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            os.write(report, f"ended {status}\n".encode())
            return


def main() -> None:
    directory, *command = sys.argv[2], *sys.argv[7:]
    report, cpu, memory, file_size, processes = (int(sys.argv[i]) for i in (1, 3, 4, 5, 6))
    os.set_inheritable(report, False)
    libc, root = kernel(), os.getuid() == 0
    user = STRANGER + os.getpid() if root and libc is not None else os.getuid()
    held = dict.fromkeys(HELD, False)
    if libc is not None:
        if root:
            for place in (directory, *os.scandir(directory)):
                os.chown(place, user, user)
        held = unshared(libc, directory, user)
        closed(libc, root)
        version = tuple(int(x) for x in os.uname().release.split("-")[0].split(".")[:2])
        held["number"] = root or (held["network"] and version >= COUNTS_BY_NAMESPACE)
    os.write(report, " ".join(("held", *(name for name, holds in held.items() if holds))).encode() + b"\n")

    def start() -> None:
        os.chdir(directory)
        limited(cpu, memory, file_size, processes if held["number"] else None)  # else all of this user would count
        if user != os.getuid():
            become(libc, user)
        os.execv(command[0], command)

    if libc is None or not held["processes"]:
        wait_for(start, report)
        os._exit(0)
    first = os.fork()  # the first process of the new namespace: when it ends, everything in there does
    if first == 0:
        libc.prctl(DIE_WITH_PARENT, 9, 0, 0, 0)
        wait_for(start, report)
        os._exit(0)
    for number in (0, 1, 2):
        os.close(number)
    os.waitpid(first, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
