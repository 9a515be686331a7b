"""One process at a time writes into a run directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gxpo.errors import ConfigError

NAME = ".lock"


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Holds the directory; the system lets go of it when the process ends, however that happens.

    `ConfigError` where another process holds it. Where there are no such locks (Windows) nothing is checked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(run / NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{run} is being written by another process: wait for it, end it, or give another --out"
            ) from None
        yield
    finally:
        os.close(descriptor)
