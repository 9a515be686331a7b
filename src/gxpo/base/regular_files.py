"""Files whose names come from others: regular files alone, of a bounded size, so that no read hangs or fills memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gxpo.base.errors import GxpoError

NAME_SHOWN = 80  # characters of a name in an error


def fault_of(path: Path) -> str | None:
    """Why a path can't be read as a regular file, or None. A pipe, a device and a directory are no regular files."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "no such file"
    except ValueError:  # a null character, or half of a surrogate pair
        return "no such file: its name has a character that names can't have"
    except OSError as error:
        return f"can't be read ({(error.strerror or type(error).__name__).lower()})"
    if stat.S_ISREG(mode):
        return None
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    kind = next((name for is_kind, name in kinds if is_kind(mode)), "a device")
    return f"is {kind}, not a regular file"


def check_regular(path: Path, error: type[GxpoError] = GxpoError, label: str = "") -> None:
    """Raise `error` unless `path` is a regular file; `label` begins its message, by default the path."""
    if fault := fault_of(path):
        raise error(f"{label or short_name(path)}: {fault}")


def read_regular(path: Path, max_bytes: int, error: type[GxpoError] = GxpoError, label: str = "") -> bytes:
    """Bytes of a regular file of at most `max_bytes` bytes; `error` for anything else, before it is read."""
    # by stat before opening: opening a pipe would wait for its writer
    check_regular(path, error, label)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = b"" if size > max_bytes else file.read(max_bytes + 1)  # files of /proc have the size 0
    except OSError as cause:
        raise error(f"{label or short_name(path)}: can't be read ({(cause.strerror or 'unknown').lower()})") from None
    if size > max_bytes or len(data) > max_bytes:
        raise error(f"{label or short_name(path)}: has {max(size, len(data))} bytes, and at most {max_bytes} are read")
    return data


def short_name(path: str | Path) -> str:
    """A path for an error, its middle left out where it is long."""
    text, half = str(path), NAME_SHOWN
    return text if len(text) <= 2 * half else f"{text[:half]}...{text[-half:]} ({len(text)} characters)"
