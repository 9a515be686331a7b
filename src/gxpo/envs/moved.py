"""Modules that are in `gxpo_worlds` now, importable by their former names for one release."""

from __future__ import annotations

import importlib
import sys
import warnings


def moved(name: str) -> None:
    """Put `gxpo_worlds.X` in the place of the module `gxpo.envs.X`, with a warning that says the new name."""
    new = f"gxpo_worlds.{name.rpartition('.')[2]}"
    warnings.warn(f"{name} is now {new}; the former name goes with the next release", FutureWarning, stacklevel=4)
    sys.modules[name] = importlib.import_module(new)
