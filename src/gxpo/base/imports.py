"""Imports of gxpo's own modules: names that load when they are read, and no full garbage collections in between.

A full collection walks all that torch has made, and takes as long as everything that a first `gxpo.method` does itself.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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


def lazy_names(package: str, **homes: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names load their modules when they are first read.

    homes  name -> module of the package

    __getattr__ = lazy_names(__name__, StateRelative="state_relative")
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return load
