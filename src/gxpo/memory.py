"""Out-of-memory errors that say what to lower, and control over the allocator's freed blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from gxpo.errors import ModelError

SAYINGS = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")  # of CPUs and other devices


@contextmanager
def memory_is_short(doing: str, remedy: str) -> Iterator[None]:
    """Context manager: turn a failed allocation into a `ModelError` that says what to lower; other errors pass."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        said = str(error).strip().split("\n")[0]
        if isinstance(error, RuntimeError) and not (
            isinstance(error, torch.OutOfMemoryError) or any(saying in said.lower() for saying in SAYINGS)
        ):
            raise
        raise ModelError(f"out of memory while {doing}: lower {remedy} ({said})") from error


# ---------------------------------------------------------------- the heap of glibc
KEEP = 32 << 20  # bytes of a block up to which a freed one stays with the process, to be used again without page faults
IDLE = 256 << 20  # bytes of freed blocks above which they are given back between the phases of a step


@cache
def _glibc() -> Any:
    """The C library, where it is glibc; None elsewhere."""
    try:
        library = ctypes.CDLL("libc.so.6")
        library.mallinfo2.restype = _Heap
    except (OSError, AttributeError):
        return None
    return library


HEAP = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Heap(ctypes.Structure):
    """Heap statistics of glibc (mallinfo2)."""

    _fields_ = [(name, ctypes.c_size_t) for name in HEAP]


def reuse_freed() -> None:
    """Keep freed blocks of up to `KEEP` bytes in this process for reuse: each step allocates the same ones again.

    Without it the kernel hands out, and zeroes, the pages of every larger tensor anew. Does nothing without glibc.
    """
    if (library := _glibc()) is not None:
        library.mallopt(-3, KEEP)  # M_MMAP_THRESHOLD
        library.mallopt(-1, IDLE)  # M_TRIM_THRESHOLD


def give_back() -> None:
    """Return freed blocks to the system if they exceed `IDLE` bytes; does nothing without glibc."""
    if (library := _glibc()) is not None and library.mallinfo2().fordblks > IDLE:
        library.malloc_trim(0)
