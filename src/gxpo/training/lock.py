"""One process at a time writes into a run directory."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from gxpo.base.errors import ConfigError

NAME = ".lock"


class Lock:
    """Exclusive lock of a run directory; the system releases it when the process ends, however that happens."""

    def __init__(self, run: Path) -> None:
        self.run = Path(run)
        self._lock: BaseFileLock | None = None
        self._file: os.stat_result | None = None

    @property
    def held(self) -> bool:
        """Between `acquire` and `release`."""
        return self._lock is not None

    def acquire(self) -> None:
        """`ConfigError` if another process holds it."""
        lock = FileLock(self.run / NAME, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"{self.run} is being written by another process: wait for it, end it, or give another --out"
            ) from None
        self._lock, self._file = lock, os.stat(self.run / NAME)

    def release(self) -> None:
        """Does nothing if it is not held."""
        if self._lock is not None:
            self._lock.release()
        self._lock = self._file = None

    def in_place(self) -> bool:
        """Whether the locked file is still the one in the directory: not if that was deleted or replaced."""
        try:
            return self._file is not None and os.path.samestat(self._file, os.stat(self.run / NAME))
        except FileNotFoundError:
            return False
