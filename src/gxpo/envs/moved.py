"""Aliases of modules that have moved to `gxpo_worlds`, for one release."""

from __future__ import annotations

import importlib
import sys
import warnings


def moved(name: str) -> None:
    """Alias the module `gxpo.envs.X` to `gxpo_worlds.X`, with a warning that says the new name."""
    new = f"gxpo_worlds.{name.rpartition('.')[2]}"
    warnings.warn(f"{name} is now {new}; the former name goes with the next release", FutureWarning, stacklevel=4)
    sys.modules[name] = importlib.import_module(new)
