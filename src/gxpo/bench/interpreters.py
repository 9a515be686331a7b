"""Versions of packages installed for other Python interpreters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

from gxpo.base.errors import MissingExtra

LIST_VERSIONS = """import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))"""


@cache
def _read_versions(python: str, names: tuple[str, ...]) -> dict[str, str | None]:
    try:
        done = subprocess.run(
            [python, "-c", LIST_VERSIONS, *names], capture_output=True, text=True, check=True, timeout=60
        )
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise MissingExtra(
            f"{python} is no interpreter that runs ({type(error).__name__}): give --python PATH"
        ) from None


def versions(python: str | None, names: Sequence[str]) -> dict[str, str | None]:
    """Versions of distributions in an environment (None: this one); None for those that are missing."""
    return dict(_read_versions(python or sys.executable, tuple(names)))


def need(python: str | None, name: str, extra: str) -> dict[str, str]:
    """Raise `MissingExtra` unless an environment has gxpo and the distribution `name`."""
    installed = versions(python, ("gxpo", name))
    missing = [what for what, version in installed.items() if version is None]
    if missing:
        where = python or sys.executable
        raise MissingExtra(
            f"{' and '.join(missing)} is not installed for {where}: pip install 'gxpo[{extra}]' there, or name another "
            "interpreter with --python"
        )
    return {"python": python or sys.executable}
