"""Launcher of sandboxed programs: isolates and limits itself as far as the kernel allows, then runs the program.

Imported in a process of its own (`START`; `rewards.sandbox` is the other side), with the program's environment.
To the pipe REPORT it writes a line before the program starts, `held network files ...`, one when it has ended,
`ended STATUS`, one when what it left behind has ended or is this process's to end, `over`, and where it could not be
started, `error REASON`. On the standard library alone, and on little of it: it starts once for every program.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

# Nothing is imported from where the program's files are. This file's folder, which has names of the standard library,
# comes last, and only for what is named: this file, and files of the sandbox that need not be compiled each time.
START = (
    "import sys; del sys.path[0]; sys.path.append(sys.argv[1]); import launcher; "
    "[__import__(name) for name in sys.argv[2].split()]; sys.path.pop(); launcher.main(sys.argv[3:])"
)
PROGRAM = "main.py"  # the file that is run

USER, NETWORK, PROCESSES, MOUNTS, IPC = 0x10000000, 0x40000000, 0x20000000, 0x00020000, 0x08000000
ATTEMPTS = (
    (USER | NETWORK | PROCESSES | MOUNTS | IPC, ("network", "processes", "files")),
    (USER | NETWORK | PROCESSES, ("network", "processes")),
    (USER | NETWORK, ("network",)),
)
ISOLATION: tuple[str, ...] = ("network", "processes", "files", "reads", "number", "space")
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 0x40000
RDONLY, RECURSIVE, AT_FDCWD, MOUNT_SETATTR = 1, 0x8000, -100, 442
NO_NEW_PRIVILEGES, SUBREAPER, DROP_BOUND, DIE_WITH_PARENT, DUMPABLE, KEEP, AMBIENT = 38, 36, 24, 1, 4, 8, 47
READ_ALL, OVERRIDE = 2, 1  # capabilities: to read what root could read, where the interpreter is root's alone
COUNTS_BY_NAMESPACE = (5, 14)  # Linux from here on counts a user's processes in each user namespace by itself
STRANGER = 1 << 30  # above every user there is

CREATE_RULESET, ADD_RULE, RESTRICT = 444, 445, 446  # Landlock, by its versions 1 to 5 and later
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
ALL_RIGHTS, EXECUTE, WRITE, READ, LIST, TRUNCATE = (1 << 16) - 1, 1, 2, 4, 8, 1 << 14
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/proc"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"),
    *("/etc/hosts", "/etc/ssl", "/etc/pki", "/etc/mime.types", "/etc/alternatives", "/sys/devices/system"),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def kernel() -> Any:
    """Load the C library; None where it is not Linux's."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError):
        return None


def unshare(libc: Any, user: int) -> set[str]:
    """Unshare network, processes and mounts ("files"); return those that succeeded.

    user  of the program: this process's own user or, under root, an unused one
    """
    isolation: set[str] = set()
    uid, group = os.getuid(), os.getgid()
    # As root several users are mapped, which only a process outside of the new namespace may do: it is forked before.
    mapper = Mapper({uid, user}, {group, user}) if uid == 0 else None
    # From the most isolation to the least: containers often allow only part of it.
    for flags, names in ATTEMPTS:
        if libc.unshare(flags) == 0:
            isolation.update(names)
            break
    if mapper is not None:
        mapper.map(bool(isolation))
    elif isolation:
        # An unprivileged process has to give up setgroups before it may map its group.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    return isolation


class Mapper:
    """Helper process outside of the user namespace that maps several users into it, as root."""

    def __init__(self, users: set[int], groups: set[int]) -> None:
        request_pipe, self.line = os.pipe()
        self.outside = os.fork()
        if self.outside == 0:
            os.close(self.line)
            if os.read(request_pipe, 1):
                for name, ids in (("gid_map", groups), ("uid_map", users)):
                    _write(f"/proc/{os.getppid()}/{name}", "".join(f"{i} {i} 1\n" for i in sorted(ids)))
            os._exit(0)
        os.close(request_pipe)

    def map(self, is_needed: bool) -> None:
        os.write(self.line, b"x" if is_needed else b"")
        os.close(self.line)
        os.waitpid(self.outside, 0)


def _write(path: str, text: str) -> None:
    """Write to a file of /proc, silently where that is refused: isolation that depends on it then fails to appear."""
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


# ---- files
def mount_read_only(libc: Any, directory: str, user: int, disk: int, entries: int) -> set[str]:
    """Remount all file systems read-only ("files"), with `directory` in memory and of limited size ("space")."""
    import ctypes

    class Attributes(ctypes.Structure):
        _fields_ = [(n, ctypes.c_uint64) for n in ("attr_set", "attr_clr", "propagation", "userns_fd")]

    def change(path: bytes, recursive: int, add: int, clear: int) -> bool:
        attributes = Attributes(add, clear, 0, 0)
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        return libc.syscall(MOUNT_SETATTR, AT_FDCWD, path, recursive, ctypes.byref(attributes), size) == 0

    place = os.fsencode(directory)
    # Mounts are private first, or they would spread to the host.
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return set()
    isolation = {"files", "space"} if _mount_memory(libc, directory, user, disk, entries) else {"files"}
    # Without memory to mount, the directory is at least a mount of its own, which stays writable.
    if "space" not in isolation and libc.mount(place, place, None, MS_BIND, None) != 0:
        return set()
    return isolation if change(b"/", RECURSIVE, RDONLY, 0) and change(place, 0, 0, RDONLY) else isolation - {"files"}


def _mount_memory(libc: Any, directory: str, user: int, disk: int, entries: int) -> bool:
    """Mount a file system of limited size over the directory, with the same files in it; True if it is there."""
    files = {}
    # Open before the mount hides it: the files below are removed through this descriptor.
    below = os.open(directory, os.O_RDONLY)
    for name in os.listdir(below):
        with open(os.path.join(directory, name), "rb") as file:
            files[name] = file.read()
    size, number = disk + sum(len(data) + 8192 for data in files.values()), entries + len(files) + 1
    options = f"size={size},nr_inodes={number},mode=0700,uid={user},gid={os.getgid() if user == os.getuid() else user}"
    if libc.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", MS_NOSUID | MS_NODEV, options.encode()) != 0:
        os.close(below)
        return False
    for name, data in files.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(data)
            os.fchown(file.fileno(), user, -1)
        os.unlink(name, dir_fd=below)  # other programs can't see the new ones
    os.close(below)
    return True


def restrict_paths(libc: Any, directory: str, readable: Sequence[str]) -> set[str]:
    """Restrict paths by Landlock: only `directory`, the interpreter, system libraries and `readable` open.

    Returns "reads" where the kernel has it, and "files" where it covers all kinds of writing. No process outside can be
    traced; TCP can't be used from version 4 on, and no process outside be signalled from version 6 on.
    """
    import ctypes

    # The call with no rules asks for the version.
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return set()
    # Each version of the kernel's interface knows more rights and a longer structure.
    rights = RIGHTS.get(version, ALL_RIGHTS)
    handled = (ctypes.c_uint64 * 3)(rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = libc.syscall(CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(size), 0)
    if rules < 0:
        return set()

    def allow(path: str, allowed_rights: int) -> None:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # there is no such thing here
        # Rights of directories make the kernel refuse a rule for a file.
        if not os.path.isdir(path):
            allowed_rights &= EXECUTE | WRITE | READ | TRUNCATE
        rule = (allowed_rights & rights).to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        libc.syscall(ADD_RULE, rules, 1, rule, 0)
        os.close(place)

    # The interpreter and the libraries are readable, devices writable, and the program's own directory everything.
    interpreter = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__), *sys.path)
    interpreter_folder = os.path.dirname(sys.executable)
    for path in {
        *SYSTEM,
        *interpreter,
        interpreter_folder,
        os.path.join(os.path.dirname(interpreter_folder), "pyvenv.cfg"),
        *readable,
    }:
        allow(path, EXECUTE | READ | LIST)
    for path in DEVICES:
        allow(path, READ | WRITE)
    allow(directory, ALL_RIGHTS)
    restricted = libc.syscall(RESTRICT, rules, 0) == 0
    os.close(rules)
    return set() if not restricted else {"reads", "files"} if version >= 3 else {"reads"}


# ---- privileges and limits
def drop_privileges(libc: Any, root: bool) -> None:
    """Drop privileges: no set-user-id programs, no capabilities after exec; become the reaper of orphans."""
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    libc.prctl(DUMPABLE, 0, 0, 0, 0)  # the program reads nothing of the processes that wait for it
    for capability in range(64):
        if not (root and capability in (READ_ALL, OVERRIDE)):
            libc.prctl(DROP_BOUND, capability, 0, 0, 0)


def switch_user(libc: Any, user: int) -> None:
    """Switch to the program's user, without capabilities; under root an unused one, whose processes the kernel counts.

    Where the interpreter is root's alone, the stranger may read what root may.
    """
    import ctypes

    def keep(capabilities: int) -> bool:
        capability_header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        return libc.capset(capability_header, (ctypes.c_uint32 * 6)(*[capabilities] * 3)) == 0

    # An interpreter that only root may read can't be started by a stranger: then one capability to read is kept.
    capabilities_kept: tuple[int, ...] = ()
    if user != os.getuid():
        libc.prctl(KEEP, 1, 0, 0, 0)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        if not (os.access(sys.executable, os.R_OK | os.X_OK) and os.access(os.__file__, os.R_OK)):
            capabilities_kept = (READ_ALL, OVERRIDE)
    for capability in capabilities_kept:
        if keep(1 << capability):
            libc.prctl(AMBIENT, 2, capability, 0, 0)
            break
    else:
        keep(0)
    libc.prctl(DUMPABLE, 1, 0, 0, 0)


def set_limits(cpu: int, memory: int, file_size: int, processes: int | None) -> None:
    """Set resource limits of this process and each child; `processes` is None where all of the user's would count."""
    import resource

    def limit(kind: int, soft: int, hard: int | None = None) -> None:
        most = resource.getrlimit(kind)[1]
        hard = soft if hard is None else hard
        # A limit may be lowered and never raised: one that is lower already stays.
        hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
        try:
            resource.setrlimit(kind, (min(soft, hard), hard))
        except (OSError, ValueError):
            return  # macOS refuses some limits that it lists

    # The soft limit ends a program with a signal that tells of it; a second later it is killed.
    limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    limit(resource.RLIMIT_AS, memory)
    limit(resource.RLIMIT_FSIZE, file_size)
    limit(resource.RLIMIT_NOFILE, 64)
    limit(resource.RLIMIT_CORE, 0)
    if processes is not None:
        limit(resource.RLIMIT_NPROC, processes)


# ---- the program
def isolate(libc: Any, directory: str, user: int, disk: int, entries: int) -> set[str]:
    """Isolate this process; return the kinds of isolation that succeeded, of all but "reads"."""
    isolation = unshare(libc, user)
    if "files" in isolation:
        isolation = isolation - {"files"} | mount_read_only(libc, directory, user, disk, entries)
    # Without a file system of its own, the directory has to belong to the program's user.
    if user != os.getuid() and "space" not in isolation:
        for place in (directory, *os.scandir(directory)):
            os.chown(place, user, user)
    version = tuple(int(x) for x in os.uname().release.split("-")[0].split(".")[:2])
    # The number of processes is counted by user, and only a user or namespace of its own counts the program's alone.
    if user != os.getuid() or ("network" in isolation and version >= COUNTS_BY_NAMESPACE):
        isolation.add("number")
    drop_privileges(libc, user != os.getuid())
    return isolation


def fork_program(libc: Any, isolation: set[str], report: int, stay: int) -> None:
    """Fork and return in the child, which becomes the program; the parent waits for it and exits at the end."""
    if "processes" in isolation:
        init_process = os.fork()  # the first process of the new namespace: when it ends, everything in there does
        if init_process:
            # Whoever reads the program's output would wait for this process too.
            os.closerange(0, 3)
            os.waitpid(init_process, 0)
            report_end(report, stay)
        # If the launcher dies, so must the namespace.
        libc.prctl(DIE_WITH_PARENT, 9, 0, 0, 0)
        if "files" in isolation:
            # Tools look at /proc, which must show the new namespace and nothing of the host.
            libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    child = os.fork()
    if not child:
        return
    os.closerange(0, 3)  # what the program writes to ends when it does
    while True:
        ended, status = os.waitpid(-1, 0)  # its orphans come here, too
        if ended == child:
            os.write(report, f"ended {status}\n".encode())
            if "processes" not in isolation:
                report_end(report, stay)
            os._exit(0)


def report_end(report: int, stay: int) -> NoReturn:
    """Report the end, then keep orphans until the other side ends this process or is gone."""
    os.write(report, b"over\n")
    os.read(stay, 1)
    os._exit(0)


def become_program(directory: str) -> None:
    """Run the program in this interpreter as its main module; starting another would take as long again."""
    path = os.path.join(directory, PROGRAM)
    with open(path, "rb") as file:
        source = file.read()
    # As if it had been started by its path: sys.argv, sys.path and __main__.
    sys.argv[:] = [path]
    sys.path.insert(0, directory)
    module = sys.modules["__main__"] = type(sys)("__main__")
    module.__file__ = path
    try:
        exec(compile(source, path, "exec", dont_inherit=True), vars(module))
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this function
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def main(arguments: Sequence[str]) -> None:
    """Isolate this process and run the program; the report has the isolation, or the error.

    arguments  REPORT STAY CPU MEMORY FILE_SIZE PROCESSES DISK ENTRIES PACKAGES DIRECTORY READABLE...
    """
    report, stay, cpu, memory, file_size, processes, disk, entries, packages = map(int, arguments[:9])
    directory, readable = arguments[9], arguments[10:]
    libc, uid = kernel(), os.getuid()
    # Under root a user number that nobody else has, so that its processes can be counted.
    user = STRANGER + os.getpid() if uid == 0 and libc is not None else uid
    isolation = set[str]() if libc is None else isolate(libc, directory, user, disk, entries)
    fork_program(libc, isolation, report, stay)
    # In the child. Paths and limits are restricted after the imports of `site`, the user is switched last: each step
    # needs rights that a later one takes away.
    try:
        os.chdir(directory)
        if packages:
            import site

            site.main()
        if libc is not None:
            isolation |= restrict_paths(libc, directory, readable)
        parents = 2 if user == uid else 0  # of the same user: a namespace counts them as well
        set_limits(cpu, memory, file_size, processes + parents if "number" in isolation else None)
        if libc is not None:
            switch_user(libc, user)
        os.write(report, " ".join(("held", *(name for name in ISOLATION if name in isolation))).encode() + b"\n")
    except BaseException as error:
        os.write(report, " ".join(f"error {type(error).__name__}: {error}".split()).encode() + b"\n")
        os._exit(127)
    os.close(report)
    os.close(stay)
    become_program(directory)
