"""Imports of gxpo's own modules without full garbage collections in between.

A full collection walks all that torch has made, and takes as long as everything that a first `gxpo.method` does itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collections_paused() -> Iterator[None]:
    """Pause Python's garbage collector inside the block; where it is off already, it stays so."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
