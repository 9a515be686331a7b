"""Measurements of `scripts/gpu.py` on what holds the weights: FSDP2 with one rank, a worker of verl, old rollouts."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from gpu_measures import GROUP, SHAPES, Peak, clock, even, random_forest, random_model, save_model
from gpu_scale import spread_loss, squared_norm

if TYPE_CHECKING:
    from gpu import Figures

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3


# ---------------------------------------------------------------- FSDP2
def fsdp(figures: Figures) -> None:
    """Compare updates on FSDP2 with one rank with the unsharded learner's: gradient, seconds, peak memory."""
    for shape in ("toy",) if figures.toy else ("qwen2.5-0.5b", "qwen2.5-1.5b"):
        figures.take(f"fsdp:{shape}", lambda shape=shape: measure_sharded(figures, shape))


def measure_sharded(figures: Figures, shape: str) -> dict[str, Any]:
    """Compare the gradient in float32, then time three updates of each learner in bfloat16 after one that sets things
    up."""
    import torch.distributed as dist

    from gxpo.base import runtime
    from gxpo.learning.sharded import ShardedLearner, whole_tensor
    from gxpo.learning.torch import TorchLearner

    samples, prompt, new = (8, 4, 8) if figures.toy else (64, 128, 512)
    forest = random_forest(SHAPES[shape]["vocab_size"], samples // GROUP, prompt, new)
    small_forest = random_forest(SHAPES[shape]["vocab_size"], 1, 4, 8)
    runtime.start(group_of_one=True)
    try:
        row: dict[str, Any] = {"backend": dist.get_backend(), "ranks": dist.get_world_size()}
        gradients, seconds = [], {}
        for name, kind in (("local", TorchLearner), ("fsdp", ShardedLearner)):
            learner: Any = kind(random_model(shape, figures.device, torch.float32), lr=0.0, device=figures.device)
            gradients.append(
                {n: whole_tensor(x).float().cpu() for n, x in learner.gradient(small_forest, spread_loss).items()}
            )
            del learner
            model = random_model(shape, figures.device, torch.bfloat16)
            learner = kind(model, lr=1e-6, device=figures.device, tokens_per_microbatch=16384, recompute=True)
            learner.step(forest, spread_loss)
            peak = Peak(figures.device)
            seconds[name] = median_seconds(figures.device, lambda learner=learner: learner.step(forest, spread_loss))
            row |= {f"{name}_step_s": seconds[name], **{f"{name}_{k}": x for k, x in peak.figures().items()}}
            del learner, model
    finally:
        dist.destroy_process_group()
    squared_gap = sum(squared_norm(gradients[1][n] - g) for n, g in gradients[0].items())
    return row | {
        "overhead": seconds["fsdp"] / seconds["local"] - 1,
        "gradient_relative_difference": (squared_gap / sum(map(squared_norm, gradients[0].values()))) ** 0.5,
        "action_tokens": forest.n_entries,
    }


def median_seconds(device: str, work: Callable[[], Any]) -> float:
    """Time a few rounds of work; return the median seconds."""
    seconds = []
    for _ in range(ROUNDS):
        start = clock(device)
        work()
        seconds.append(clock(device) - start)
    return median(seconds)


# ---------------------------------------------------------------- verl
def verl(figures: Figures) -> None:
    """Measure a worker of verl's FSDP engine: conformance in float32 and bfloat16, seconds of a forward pass and of a
    pull."""
    python = os.environ.get("GXPO_VERL_PYTHON") or sys.executable
    if subprocess.run([python, "-c", "import verl"], check=False, capture_output=True).returncode:
        print(f"verl: skipped: {python} has no verl; GXPO_VERL_PYTHON names an interpreter that has", flush=True)
        return
    shape = "toy" if figures.toy else "qwen2.5-0.5b"
    for dtype in ("float32", "bfloat16"):
        figures.take(f"verl:{shape}/{dtype}", lambda dtype=dtype: measure_in_verl(figures, python, shape, dtype))


def measure_in_verl(figures: Figures, python: str, shape: str, dtype: str) -> dict[str, Any]:
    """Run `measure_worker` in an interpreter with verl."""
    rows = "4x12" if figures.toy else "16x2048"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TORCHDYNAMO_DISABLE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            python,
            __file__,
            save_model(folder, shape),
            "--dtype",
            dtype,
            "--rows",
            rows,
            "--device",
            figures.device,
        ]
        process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"the worker ended with {process.returncode}: {process.stderr.strip().splitlines()[-1:]}")
    return json.loads(process.stdout.splitlines()[-1])


def measure_worker(model: str, dtype: str, rows: str, device: str) -> dict[str, Any]:
    """Report what `gxpo.conformance.engines` finds against the learner in float32, and the seconds of the two calls."""
    from transformers import AutoModelForCausalLM

    from gxpo.conformance.engines import check
    from gxpo.learning.remote.verl import VerlEngine
    from gxpo.learning.torch import TorchLearner
    from gxpo.parts.protocols import TokenRow

    start = clock(device)
    engine = VerlEngine(model, dtype=dtype)
    row: dict[str, Any] = {"start_s": clock(device) - start, "packed": engine.packed}
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    policy = policy.to(device)
    move = 0.2 if dtype == "bfloat16" else 0.02
    for result in check(engine, TorchLearner(policy, lr=0.0, device=device), move=move):
        row[result.name.replace("probe: ", "probe_").replace(" ", "_")] = result.error
    n, length = map(int, rows.split("x"))
    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(length // 4, length)
    token_ids = [torch.randint(3, policy.config.vocab_size, (length,), generator=generator) for _ in range(n)]
    token_rows = [
        TokenRow(tokens, positions, torch.ones(positions.numel(), dtype=torch.float64)) for tokens in token_ids
    ]
    slopes = {"logprob": [torch.linspace(-1, 1, positions.numel(), dtype=torch.float64) / n for _ in token_rows]}
    engine.forward(token_rows)
    engine.pull(token_rows, slopes)
    forward, pull = (
        median_seconds(device, lambda: engine.forward(token_rows)),
        median_seconds(device, lambda: engine.pull(token_rows, slopes)),
    )
    return row | {"forward_s": forward, "pull_s": pull, "pull_over_forward": pull / forward, "tokens": n * length}


# ---------------------------------------------------------------- age of rollouts
def staleness(figures: Figures) -> None:
    """Train runs of 50 steps whose rollouts were sampled 0, 1, 2 and 4 versions ago: reward, mismatch, seconds."""
    model, steps = ("tiny:cold", 6) if figures.toy else (largest_model(), 50)
    for age in (0, 2) if figures.toy else (0, 1, 2, 4):
        name = f"staleness:{Path(model).name}/{steps}/{age}"
        figures.take(name, lambda age=age: train_stale(figures, model, steps, age))


def largest_model() -> str:
    """Name the largest model that is there without a download."""
    from gxpo.models.cache import cache_directory
    from gxpo.models.smollm2 import NAME, _installed_file

    if path := os.environ.get("GXPO_GPU_MODEL"):
        return path
    has_smollm2 = (cache_directory(None) / NAME / "model.safetensors").is_file() or _installed_file() is not None
    return NAME if has_smollm2 else "tiny"


def train_stale(figures: Figures, model: str, steps: int, age: int) -> dict[str, Any]:
    """Train with groups of step n sampled under version n - 1 - age, whatever the clock says (`async.order:
    dispatch`)."""
    import gxpo

    prompts, new = (2, 6) if figures.toy else (8, 32)
    keys = {"async.max_staleness": age, "weight.mismatch": "truncated", "tasks.per_step": prompts, "eval.every": 0,
            "eval.tasks": 4, "sampling.max_new_tokens": new, "sampling.engine": "torch",
            "learner.device": figures.device}  # fmt: skip
    keys |= {} if model.startswith("tiny") else {"learner.dtype": "bfloat16", "optim.lr": 1e-5}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peak = Peak(figures.device)
        reward = even if figures.toy else None
        run = gxpo.train(model, "arithmetic", "grpo", steps, reward, out=Path(folder) / "run", set=keys)
        rows = run.metrics

    def mean(name: str, subset: list[dict[str, Any]]) -> float | None:
        values = [row[name] for row in subset if row.get(name) is not None]
        return sum(values) / len(values) if values else None

    third = max(1, steps // 3)
    return {
        "steps": len(rows),
        "reward_first_third": mean("reward_mean", rows[:third]),
        "reward_last_third": mean("reward_mean", rows[-third:]),
        "mismatch_kl": mean("mismatch_kl", rows),
        "mismatch_kl_last": mean("mismatch_kl", rows[-third:]),
        "staleness_mean": mean("staleness_mean", rows),
        "step_s": median(row["time_step_s"] for row in rows),
        **peak.figures(),
    }


if __name__ == "__main__":
    worker = argparse.ArgumentParser(description=measure_worker.__doc__)
    worker.add_argument("model")
    for option in ("--dtype", "--rows", "--device"):
        worker.add_argument(option, required=True)
    print(json.dumps(measure_worker(**vars(worker.parse_args()))))
