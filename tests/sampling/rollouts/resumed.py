"""A run of five steps on five tasks that come round again, stopped in the middle and resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gxpo


def parity(completion: str) -> dict[str, float]:
    """Something that a cold model gets half of the time."""
    return {"correct": float(sum(map(ord, completion)) % 2)}


def lines(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))} for row in rows]


def check_resumed(method: str, tmp_path: Path, remembered: str, **keys: Any) -> list[dict[str, Any]]:
    """The lines of the run that was never stopped, once the resumed one has been found to be equal to it.

    remembered  what a checkpoint's state must hold
    """
    pool = [{"id": f"q{i}", "prompt": f"{i}?", "answer": str(i)} for i in range(5)]
    (tmp_path / "pool.jsonl").write_text("\n".join(map(json.dumps, pool)))
    (tmp_path / "held.jsonl").write_text(json.dumps({"id": "h", "prompt": "9?", "answer": "9"}))
    settings = {
        "tasks.per_step": 3, "tasks.options": {"held_out": str(tmp_path / "held.jsonl")}, "rollout.group_size": 4,
        "sampling.max_new_tokens": 4, "eval.tasks": 1, "eval.every": 0, "trainer.checkpoint_every": 1,
        "trainer.keep_checkpoints": 9, "trainer.rollouts_every": 1, "learner.tokens_per_microbatch": 1024, **keys,
    }  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gxpo.train("tiny:cold", str(tmp_path / "pool.jsonl"), method, 5, parity, out=whole, set=settings)
    shutil.copytree(whole, cut)  # what a run killed after step 3 and before its checkpoint leaves behind
    for step in (3, 4, 5):
        shutil.rmtree(next((cut / "checkpoints").glob(f"step-*{step}")))
    state = (next((cut / "checkpoints").glob("step-*2")) / "state.json").read_text()
    assert remembered in state
    gxpo.resume(cut, reward=parity)
    assert lines(cut) == lines(whole) and len(lines(whole)) == 5
    rollout_texts = [(run / "rollouts" / "step-000005.jsonl").read_text() for run in (whole, cut)]
    assert rollout_texts[0] == rollout_texts[1]
    return lines(whole)
