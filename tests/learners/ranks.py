"""Run a function of a module in several processes over gloo, and in this one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tests.started import Started

ROOT = Path(__file__).parents[2]


def in_ranks(module: str, folder: Path, world: int, *arguments: str, timeout: float = 240) -> None:
    """`python -m MODULE FOLDER ARGUMENTS` as that many ranks; fails with the first rank's error that there is."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(world)}  # fmt: skip
    processes = [
        Started(["-m", module, folder, *arguments], env={**shared, "RANK": str(rank)}, cwd=ROOT)
        for rank in range(world)
    ]
    errors = []
    try:
        for process in processes:
            errors.append(process.communicate(timeout=timeout)[1])
    finally:
        for process in processes:
            process.kill()
    assert all(p.returncode == 0 for p in processes), "\n".join(e[-6000:] for e in errors)
