"""Run a function of a module in several processes over gloo, and in this one."""

from __future__ import annotations

from pathlib import Path

from tests.started import ranks

ROOT = Path(__file__).parents[2]


def in_ranks(module: str, folder: Path, world: int, *arguments: str, timeout: float = 240) -> None:
    """`python -m MODULE FOLDER ARGUMENTS` as that many ranks; fails with the first rank's error that there is."""
    done = ranks(world, ["-m", module, folder, *arguments], timeout=timeout, GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0, done.stderr[-6000:]
