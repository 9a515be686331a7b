"""Installed packages of other Python interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

from gxpo.base.errors import MissingExtra

LOOK = """import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))"""


@cache
def _look(python: str, names: tuple[str, ...]) -> dict[str, str | None]:
    try:
        done = subprocess.run([python, "-c", LOOK, *names], capture_output=True, text=True, check=True, timeout=60)
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise MissingExtra(
            f"{python} is no interpreter that runs ({type(error).__name__}): give --python PATH"
        ) from None


def versions(python: str | None, names: Sequence[str]) -> dict[str, str | None]:
    """Versions of distributions in an environment (None: this one); None for those that are missing."""
    return dict(_look(python or sys.executable, tuple(names)))


def need(python: str | None, name: str, extra: str) -> dict[str, str]:
    """Raise `MissingExtra` unless an environment has gxpo and the distribution `name`."""
    found = versions(python, ("gxpo", name))
    missing = [what for what, version in found.items() if version is None]
    if missing:
        where = python or sys.executable
        raise MissingExtra(
            f"{' and '.join(missing)} is not installed for {where}: pip install 'gxpo[{extra}]' there, or name another "
            "interpreter with --python"
        )
    return {"python": python or sys.executable}
