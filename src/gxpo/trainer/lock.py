"""One process at a time writes into a run directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from gxpo.errors import ConfigError

NAME = ".lock"


class Lock:
    """Exclusive lock of a run directory; the system releases it when the process ends, however that happens.

    Without such locks (Windows) nothing is checked.
    """

    def __init__(self, run: Path) -> None:
        self.run = Path(run)
        self._file: IO[str] | None = None

    @property
    def held(self) -> bool:
        """Between `acquire` and `release`."""
        return self._file is not None

    def acquire(self) -> None:
        """`ConfigError` if another process holds it."""
        file = open(self.run / NAME, "a")  # noqa: SIM115  # open as long as it is held
        try:
            import fcntl
        except ImportError:
            self._file = file
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigError(
                f"{self.run} is being written by another process: wait for it, end it, or give another --out"
            ) from None
        self._file = file

    def release(self) -> None:
        """Does nothing if it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def in_place(self) -> bool:
        """Whether the locked file is still the one in the directory: not if that was deleted or replaced."""
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.run / NAME))
        except FileNotFoundError:
            return False
