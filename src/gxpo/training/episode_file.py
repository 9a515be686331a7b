"""Append episodes to a file of records as each ends: whole lines, so that a kill loses no episode that has ended."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, RecordError, need
from gxpo.forest import records
from gxpo.forest.forest import Forest

SYNC = 1.0  # seconds after which the next line is also forced to the disk, as it is at the end


class EpisodeFile:
    """A JSON Lines file that grows by an episode a line; one that is there already goes on.

    A line is handed to the system in one piece once its episode has ended: a kill at any time leaves whole lines. A
    power cut may lose what came in the last second. Named tensors of an episode stand in a .safetensors file of its own
    beside the file.

    names  ids of the episodes in it
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: set[str] = set()
        self._lines_left: list[bytes] = []  # lines that could not be written
        self._last_sync = 0.0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            size = os.fstat(self._file).st_size
        except OSError as error:
            raise ConfigError(
                f"--out {path}: {error.strerror}; give a file in a directory that exists and can be written"
            ) from error
        if size:
            self._go_on(size)

    def _go_on(self, size: int) -> None:
        """Read what is in the file already: its lines have to be records, and theirs are names that are taken."""
        try:
            self.names |= set(records.load(self.path).id)
        except RecordError as error:
            os.close(self._file)
            raise RecordError(f"{error}; --out goes on with a file that is there: mend it, or name another") from None
        if os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")

    def name(self, wanted: str) -> str:
        """An id that is not in the file: `wanted`, else wanted#1, wanted#2, ..."""
        name, n = wanted, 0
        while name in self.names:
            n += 1
            name = f"{wanted}#{n}"
        self.names.add(name)
        return name

    def append(self, episode: Forest) -> None:
        """Write the records of an episode. `RecordError` where the disk takes none; they are written with the next."""
        for record in records.render(episode):
            self._save_tensors(record)
            self._lines_left.append((json.dumps(record, allow_nan=False) + "\n").encode())
        self._write(sync=time.monotonic() >= self._last_sync + SYNC)

    def close(self) -> None:
        """Write what is left, and have it on the disk."""
        try:
            self._write(sync=True)
        finally:
            os.close(self._file)

    def _write(self, sync: bool) -> None:
        try:
            while self._lines_left:
                size = os.fstat(self._file).st_size
                line = self._lines_left[0]
                if os.write(self._file, line) < len(line):
                    os.ftruncate(self._file, size)  # half a line would spoil the file
                    raise OSError(28, "no space left on the device")
                del self._lines_left[0]
            if sync:
                os.fsync(self._file)
                self._last_sync = time.monotonic()
        except OSError as error:
            n = len(self._lines_left)
            raise RecordError(f"{self.path}: {error.strerror}: {n} episodes are not written yet") from error

    def _save_tensors(self, record: dict[str, Any]) -> None:
        tensors = {}
        side = self.path.with_name(f"{self.path.stem}.{len(self.names)}.safetensors")
        while side.exists():
            side = side.with_name(f"{side.stem}+.safetensors")
        for i, turn in enumerate(record["turns"]):
            for name, value in turn.get("extras", {}).items():
                tensors[f"{i}.{name}"] = value.contiguous()
                turn["extras"][name] = f"{side.name}#{i}.{name}"
        if tensors:
            need("safetensors", "train")
            from safetensors.torch import save_file

            save_file(tensors, side)
