"""Check `gxpo compare --on ray`: the same comparison on Ray and in local processes has equal figures.

    pip install 'gxpo[train,compare,ray]' && python scripts/checks/check_ray.py  # on RAY_ADDRESS, or here

On Ray the process of one run is killed on the way: Ray begins the task again, and the run goes on from its checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

SETTING = """
model: tiny:cold
task: arithmetic
reward: REWARD:parity
tasks: {per_step: 2}
rollout: {group_size: 4}
sampling: {max_new_tokens: 5}
eval: {tasks: 8}
trainer: {checkpoint_every: 5}
"""
CLOCK = ("seconds", "time", "path", "commands", "versions")  # words of keys that the place and the clock decide


def figures(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: figures(v) for k, v in value.items() if not any(word in k for word in CLOCK)}
    return [figures(v) for v in value] if isinstance(value, list) else value


def compare_arms(folder: Path, where: str, *, kill: bool) -> Any:
    """Return compare.json of two arms and three seeds; `kill`: the process of one run is killed on the way."""
    out = folder / where
    words = ["compare", "dr_grpo", "grpo", "--no-controls", "--task", str(folder / "small.yaml"), "--seeds", "3"]
    is_done = threading.Event()

    def kill_one() -> None:
        while not is_done.wait(0.02):
            for metrics in out.glob("*/seed-*/metrics.jsonl"):
                listing = subprocess.run(
                    ["pgrep", "-f", r" -m gxpo\.compare\.worker$"], capture_output=True, text=True, check=False
                )
                pids = [int(pid) for pid in listing.stdout.split()]
                if pids and metrics.stat().st_size:
                    os.kill(pids[0], signal.SIGKILL)
                    print(f"killed process {pids[0]} of a run", flush=True)
                    return

    watcher = threading.Thread(target=kill_one)
    if kill:
        watcher.start()
    start = time.perf_counter()
    command = [sys.executable, "-m", "gxpo.cli.app", *words, "--budget", "4000", "--on", where, "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    is_done.set()
    if kill:
        watcher.join()
    print(f"{where}: {time.perf_counter() - start:.0f} s", flush=True)
    return figures(json.loads((out / "compare.json").read_text()))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gxpo-ray-") as name:
        folder = Path(name)
        (folder / "reward.py").write_text("def parity(completion):\n    return float(sum(map(ord, completion)) % 2)\n")
        (folder / "small.yaml").write_text(SETTING.replace("REWARD", str(folder / "reward.py")))
        local, ray = (compare_arms(folder, where, kill=where == "ray") for where in ("local", "ray"))
    print("equal" if local == ray else "NOT EQUAL")
    sys.exit(local != ray)


if __name__ == "__main__":
    main()
