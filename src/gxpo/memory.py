"""Running out of memory, said with what to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gxpo.errors import ModelError

SAYINGS = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")  # of CPUs and other devices


@contextmanager
def memory_is_short(doing: str, remedy: str) -> Iterator[None]:
    """Turns an allocation that failed into a `ModelError` that says what to lower; other errors pass."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        said = str(error).strip().split("\n")[0]
        if isinstance(error, RuntimeError) and not (
            isinstance(error, torch.OutOfMemoryError) or any(saying in said.lower() for saying in SAYINGS)
        ):
            raise
        raise ModelError(f"out of memory while {doing}: lower {remedy} ({said})") from error
