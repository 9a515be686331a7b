"""Scratch directories for untrusted programs: creation, size limits, and removal."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Leftovers:
    """Count of scratch entries that this process could not remove; warns at the first."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self, directory: str, errors: list[str]) -> None:
        with self._lock:
            first, self.count = not self.count, self.count + len(errors)
        if first:
            warnings.warn(
                f"{len(errors)} files or directories of a program in {directory} can't be removed ({errors[0]}): "
                "remove them by hand; further ones are counted without a warning in "
                "gxpo.environments.rewards.scratch.LEFTOVERS.count",
                stacklevel=2,
            )


LEFTOVERS = Leftovers()


@contextlib.contextmanager
def fresh_directory(files: Mapping[str, str], *, readable: bool = False) -> Iterator[str]:
    """Create a temporary directory with these files and remove it at the end; `readable`: other users may read it."""
    directory = tempfile.mkdtemp(prefix="gxpo-sandbox-")
    try:
        # A container's user is another one.
        if readable:
            os.chmod(directory, 0o755)
        for name, text in files.items():
            # A name with a path could write outside of the folder.
            if Path(name).name != name:
                raise ValueError(f"a sandbox's files lie in one folder: {name!r} is a path")
            Path(directory, name).write_text(text, encoding="utf-8", errors="replace")
        yield directory
    finally:
        if errors := remove(directory):
            LEFTOVERS.add(directory, errors)


def remove(directory: str) -> list[str]:
    """Remove a directory of any modes, depth and path lengths; an error for each entry that stays.

    Every directory in it is moved to the top before it is emptied, so that recursion, path and open files stay bounded.
    """
    errors: list[str] = []
    try:
        top = _open_directory(directory)
    except OSError as error:
        return [str(error)]
    try:
        # Directories at the top alone: each that is emptied adds its own to them.
        pending = _empty(top, top, errors)
        while pending:
            name = pending.pop()
            try:
                directory_fd = _open_directory(name, top)
                try:
                    pending += _empty(directory_fd, top, errors)
                finally:
                    os.close(directory_fd)
                os.rmdir(name, dir_fd=top)
            except OSError as error:
                errors.append(str(error))
        os.rmdir(directory)
    except OSError as error:
        errors = errors or [str(error)]  # if something stays, so does this
    finally:
        os.close(top)
    return errors


def _open_directory(name: str, parent_fd: int | None = None) -> int:
    """Open a directory, and make it readable and writable; links are not followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        number = os.open(name, flags, dir_fd=parent_fd)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=parent_fd)
        number = os.open(name, flags, dir_fd=parent_fd)
    os.fchmod(number, 0o700)
    return number


def _empty(directory: int, top: int, errors: list[str]) -> list[str]:
    """Unlink the files of `place` and move its directories to `top`, whose names for them are returned."""
    new_names = []
    for name in os.listdir(directory):
        # Through descriptors and never through paths, which may be longer than the system allows.
        try:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                os.unlink(name, dir_fd=directory)
                continue
            new_name = secrets.token_hex(16)
            try:
                os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=top)
            except PermissionError:  # its own mode: ".." is in it
                os.chmod(name, 0o700, dir_fd=directory)
                os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=top)
            new_names.append(new_name)
        except OSError as error:
            errors.append(str(error))
    return new_names


def exceeds(directory: str, disk: int, entries: int) -> bool:
    """True if a directory's files take more than `disk` bytes, are more than `entries`, or can't be counted."""
    pending = [directory]
    # By a list and not by recursion: a program may nest directories as deep as the disk allows.
    while pending:
        path = pending.pop()
        try:
            with _scan(path) as scan:
                for entry in scan:
                    entries -= 1
                    # Blocks and not sizes: a sparse file takes none.
                    disk -= entry.stat(follow_symlinks=False).st_blocks * 512
                    if entries < 0 or disk < 0:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except FileNotFoundError:
            continue  # it was removed meanwhile
        except OSError:
            return True  # a path that is too long, or a mode that is changed again and again
    return False


def _scan(path: str) -> Any:
    """Scan a directory, also one whose mode the program has taken away."""
    try:
        return os.scandir(path)
    except PermissionError:
        os.chmod(path, 0o700)
        return os.scandir(path)
