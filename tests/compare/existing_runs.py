"""Run directories of gxpo and logs of verl and TRL, written by hand."""

import json
from pathlib import Path
from typing import Any

SHARED = {"model": "tiny", "task": "arithmetic", "trainer.steps": 4, "eval.tasks": 2, "eval.samples": 1}


def run(
    path: Path, method: str = "grpo", seed: int = 0, tokens: int = 100, end: float = 0.5, tasks: str = "ab",
    steps: int = 4, **keys: Any,
) -> Path:  # fmt: skip
    """A run of `steps` steps with `tokens` each, evaluated before, in the middle and after; keys with __ for a dot."""
    path.mkdir(parents=True)
    keys_of_run = {k.replace("__", "."): v for k, v in keys.items()}
    config = [
        f"method: {method} # --set",
        f"seed: {seed} # --set",
        f"out: {path} # default",
        "optim.lr: 0.001 # default",
    ]
    config += [f"{k}: {json.dumps(v)} # run.yaml:3" for k, v in {**SHARED, **keys_of_run}.items()]
    if "optim.lr" in keys_of_run:
        config.remove("optim.lr: 0.001 # default")
    config.append(f"credit.scale: {'none' if method == 'dr_grpo' else 'std'} # {method}")
    (path / "config.yaml").write_text("\n".join(config) + "\n")
    lines = [
        {"step": n, "optimiser_steps": 1, "generated_tokens": n * tokens, "time_step_s": 1.0, "reward_mean": n / 10}
        for n in range(1, steps + 1)
    ]
    actual = {0: 0.0, steps // 2: 0.25, steps: end}
    rows = [{"step": n, "eval_accuracy": v, "eval_length": 9.0 - n} for n, v in actual.items()]
    for name, lines_of_file in (("metrics", lines), ("evaluations", rows)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines_of_file))
    (path / "evaluations").mkdir()
    for n, value in actual.items():
        (path / "evaluations" / f"step-{n:06d}.json").write_text(json.dumps({tasks[0]: value, tasks[1]: value}))
    return path


def verl(path: Path, reward: float = 0.5) -> Path:
    """Two steps of 4 completions: prompts of 10 tokens, completions of 5 and then of 20."""
    path.mkdir(parents=True)
    lengths = {1: 5.0, 2: 20.0}
    rows = [{"step": 0, "data": {"val-core/gsm8k/reward/mean@1": 0.25}}]
    for step, length in lengths.items():
        data = {
            "critic/score/mean": reward,
            "response_length/mean": length,
            "prompt_length/mean": 10.0,
            "perf/total_num_tokens": 4 * (10.0 + length),
            "timing_s/step": 2.0,
            "actor/grad_norm": 1.0,
            "val-core/gsm8k/reward/mean@1": reward,
        }
        rows.append({"step": step, "data": data})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def trl(path: Path, steps: int = 20, gain: float = 0.01) -> Path:
    path.mkdir(parents=True)
    history = [
        {"step": n, "reward": gain * n, "rewards/exact/mean": 1.0, "completions/mean_length": 5.0,
         "num_tokens": 60.0 * n, "frac_reward_zero_std": 0.0, "step_time": 0.5}
        for n in range(1, steps + 1)
    ]  # fmt: skip
    state = {"global_step": steps, "max_steps": steps, "logging_steps": 1, "log_history": history}
    (path / "trainer_state.json").write_text(json.dumps(state))
    return path
