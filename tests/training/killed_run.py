"""Asynchronous runs of a tiny model, and one that is killed while it writes its ledger; for a process of its own."""

from __future__ import annotations

import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import torch

import gxpo
from gxpo.training import models
from gxpo.training.asynchronous.ledger import Ledger

REWARD = f"{Path(__file__).parent / 'parity_reward.py'}:parity"
KEYS: dict[str, Any] = {
    "tasks.per_step": 2,
    "rollout.group_size": 2,
    "sampling.max_new_tokens": 4,
    "eval.every": 0,
    "eval.tasks": 1,
    "trainer.checkpoint_every": 1,
    "doctor.every": 0,
}

models.load("tiny:cold", task="arithmetic", device="cpu", dtype="float32")  # what that imports, once for all children


def train(out: Path, *, steps: int = 3, task: str = "arithmetic", method: Any = "grpo", **keys: Any) -> list[dict]:
    """The lines of a run's metrics but for what the clock decides; `keys` with __ in the place of a dot."""
    settings = {key.replace("__", "."): value for key, value in keys.items()}
    reward = REWARD if task == "arithmetic" else None
    gxpo.train("tiny:cold", task, method, steps, reward, out=out, set=KEYS | settings, progress="none")
    return lines(out)


def lines(out: Path) -> list[dict]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))} for row in rows]


def killed(out: Path, at: int, keys: dict[str, Any]) -> None:
    """A run that is killed with SIGKILL right after (negative: right before) the `at`-th line of its ledger."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    written = 0
    append = Ledger._append

    def counted(self: Ledger, line: Any) -> None:
        nonlocal written
        written += 1
        if written == -at:
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, line)
        if written == at:
            os.kill(os.getpid(), signal.SIGKILL)

    Ledger._append = counted  # type: ignore[method-assign]
    train(out, **keys)
