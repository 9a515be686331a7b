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
    """Number of scratch entries that this process could not remove so far; warns at the first."""

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
                "gxpo.environments.rewards.scratch.LEFT.count",
                stacklevel=2,
            )


LEFT = Leftovers()


@contextlib.contextmanager
def fresh_directory(files: Mapping[str, str], *, readable: bool = False) -> Iterator[str]:
    """Temporary directory with these files, removed at the end; `readable`: by other users."""
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
        if errors := remove(directory):
            LEFT.add(directory, errors)


def remove(directory: str) -> list[str]:
    """Remove a directory of any modes, depth and path lengths; an error for each entry that stays.

    Every directory in it is moved to the top before it is emptied, so that recursion, path and open files stay bounded.
    """
    errors: list[str] = []
    try:
        top = _opened(directory)
    except OSError as error:
        return [str(error)]
    try:
        pending = _emptied(top, top, errors)
        while pending:
            name = pending.pop()
            try:
                place = _opened(name, top)
                try:
                    pending += _emptied(place, top, errors)
                finally:
                    os.close(place)
                os.rmdir(name, dir_fd=top)
            except OSError as error:
                errors.append(str(error))
        os.rmdir(directory)
    except OSError as error:
        errors = errors or [str(error)]  # if something stays, so does this
    finally:
        os.close(top)
    return errors


def _opened(name: str, beside: int | None = None) -> int:
    """A directory that can be read and written from now on."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        number = os.open(name, flags, dir_fd=beside)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=beside)
        number = os.open(name, flags, dir_fd=beside)
    os.fchmod(number, 0o700)
    return number


def _emptied(place: int, top: int, errors: list[str]) -> list[str]:
    """Unlink the files of `place` and move its directories to `top`, whose names for them are returned."""
    moved = []
    for name in os.listdir(place):
        try:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=place).st_mode):
                os.unlink(name, dir_fd=place)
                continue
            new = secrets.token_hex(16)
            try:
                os.rename(name, new, src_dir_fd=place, dst_dir_fd=top)
            except PermissionError:  # its own mode: ".." is in it
                os.chmod(name, 0o700, dir_fd=place)
                os.rename(name, new, src_dir_fd=place, dst_dir_fd=top)
            moved.append(new)
        except OSError as error:
            errors.append(str(error))
    return moved


def exceeds(directory: str, disk: int, entries: int) -> bool:
    """Whether the files of a directory take more than `disk` bytes, are more than `entries`, or can't be counted."""
    pending = [directory]
    while pending:
        path = pending.pop()
        try:
            with _listed(path) as found:
                for entry in found:
                    entries -= 1
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


def _listed(path: str) -> Any:
    try:
        return os.scandir(path)
    except PermissionError:
        os.chmod(path, 0o700)
        return os.scandir(path)
