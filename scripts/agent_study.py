"""Agent credit at equal numbers of generated tokens: paired seeds from one warm start, success on held-out tasks.

    python scripts/agent_study.py --jobs 2             # goes on where it was stopped; about two hours
    python scripts/agent_study.py --report [--fidelity fidelity.json]

Every run of a world ends at the first step after which its rollouts have cost the world's budget. Runs of a seed see
the same tasks in the same order. With --fidelity the rank correlation between a method's fidelity (`gxpo bench
fidelity`) and what it gained here is printed, whatever it is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Any

METHODS: Mapping[str, Mapping[str, Any]] = {  # what is set beside the method's own keys
    "grpo": {},
    "gigpo": {},
    "hgpo": {},
    "graph_gpo": {},
    "gae_turn": {},
    "tree_grpo": {},
    "hiper": {},
    # plans tried out by sampling: greedy, a policy without memory walks in circles
    "himac": {"rollout.trial_temperature": 1.0},
}


@dataclass(frozen=True)
class World:
    """Where runs are compared.

    budget  tokens generated in training, discarded ones included
    seeds   how many; `--seeds` asks for others
    """

    keys: Mapping[str, Any]
    budget: int
    seeds: int


SHARED = {
    "model": "tiny",
    "env.context": "window",
    "sampling.max_new_tokens": 4,
    "objective.aggregate": "token_mean",
    "tasks.per_step": 16,
    "optim.lr": 3e-4,
    "eval.tasks": 300,
    "eval.temperature": 1.0,
    "trainer.checkpoint_every": 0,
    "trainer.rollouts_every": 0,
}
WORLDS: Mapping[str, World] = {
    "small": World({**SHARED, "task": "frozenlake", "tasks.options": {"style": "bare"}}, 60_000, 20),
    "large": World({**SHARED, "task": "shop", "tasks.options": {"style": "bare", "partial": False}}, 80_000, 3),
}


def train_run(world: str, method: str, seed: int) -> dict[str, Any]:
    """Train one run; return success on held-out tasks before and after, and in training by tokens generated."""
    from gxpo.parts.definition import SettingValue
    from gxpo.training.config import resolve
    from gxpo.training.loop import Trainer

    setting = WORLDS[world]
    keys = {**setting.keys, **METHODS[method], "method": method, "seed": seed, "trainer.steps": 10_000}
    accuracies: list[float] = []
    curve: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="gxpo-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(resolve({k: SettingValue(v, "study") for k, v in keys.items()}), out=Path(folder) / "run")
        try:
            accuracies.append(trainer.evaluate().figures["eval_accuracy"])
            while trainer.budget.generated_tokens < setting.budget:
                row = trainer.step()
                curve.append((row["generated_tokens"], row["success_rate"]))
            accuracies.append(trainer.evaluate().figures["eval_accuracy"])
        finally:
            trainer.close()
    return {
        "world": world,
        "method": method,
        "seed": seed,
        "before": accuracies[0],
        "after": accuracies[1],
        "steps": len(curve),
        "tokens": curve[-1][0],
        "area": area(curve, setting.budget),
        "curve": curve,
    }


def area(curve: Sequence[tuple[int, float]], budget: int) -> float:
    """Return the mean success in training over the tokens generated."""
    total, last = 0.0, 0
    for tokens, success in curve:
        total += (min(tokens, budget) - last) * success
        last = min(tokens, budget)
    return total / budget


def run_all(out: Path, worlds: Sequence[str], methods: Sequence[str], seeds: int | None, jobs: int) -> None:
    """Make the runs that `out` lacks, seed by seed, `jobs` at a time in processes of one thread each."""
    done = {(r["world"], r["method"], r["seed"]) for r in read_rows(out)}
    missing = [
        (world, method, seed)
        for world in worlds
        for seed in range(seeds or WORLDS[world].seeds)
        for method in METHODS
        if method in methods and (world, method, seed) not in done
    ]
    lock = Lock()

    def run_job(job: tuple[str, str, int]) -> None:
        command = [sys.executable, __file__, "--one", job[0], job[1], str(job[2])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if process.returncode:
            print(f"{' '.join(map(str, job))} failed: {process.stderr.strip().splitlines()[-1:]}", flush=True)
            return
        line = process.stdout.strip().splitlines()[-1]
        with lock, out.open("a") as file:
            file.write(line + "\n")
        row = json.loads(line)
        print(f"{job[0]} {job[1]} seed {job[2]}: {row['before']:.3f} -> {row['after']:.3f}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run_job, missing))


def read_rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def report(rows: Sequence[Mapping[str, Any]], fidelity: Path | None) -> None:
    """Print a table for each world: success after, how many runs fell below half of what they began with, and paired
    differences to grpo."""
    from gxpo.training.statistics import mean_interval

    for world, setting in WORLDS.items():
        world_rows = [r for r in rows if r["world"] == world]
        if not world_rows:
            continue
        base = {r["seed"]: r for r in world_rows if r["method"] == "grpo"}
        print(f"\n{world}: {setting.budget:,} generated tokens a run\n")
        print(
            "| method | runs | steps | before | after | fell | area | after less grpo (95%, paired) | area less grpo |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for method in METHODS:
            method_rows = [r for r in world_rows if r["method"] == method]
            if not method_rows:
                continue
            means = [fmean(r[k] for r in method_rows) for k in ("steps", "before", "after", "area")]
            differences = []
            for key in ("after", "area"):
                gaps = [r[key] - base[r["seed"]][key] for r in method_rows if r["seed"] in base]
                interval = ""
                if len(gaps) > 3:  # fewer are too few for one
                    low, high = mean_interval(gaps)
                    interval = f" ({low:+.3f} to {high:+.3f})"
                differences.append(f"{fmean(gaps):+.3f}{interval}" if gaps else "-")
            falls = sum(r["after"] < r["before"] / 2 for r in method_rows)
            print(
                f"| {method} | {len(method_rows)} | {means[0]:.0f} | {means[1]:.3f} | {means[2]:.3f} | {falls} | "
                f"{means[3]:.3f} | {differences[0]} | {differences[1]} |"
            )
        if fidelity is not None:
            report_fidelity(world_rows, base, json.loads(fidelity.read_text())["rows"], setting.keys["task"])


def report_fidelity(
    world_rows: Sequence[Mapping[str, Any]],
    base: Mapping[int, Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    task: str,
) -> None:
    """Print the rank correlation of fidelity with the paired area less grpo, over the methods that have both."""
    from gxpo.bench.fidelity import prediction

    fidelity_rows = {
        r["name"].partition("/")[2]: r for r in rows if r["name"].startswith(f"{task}/") and r.get("rank") is not None
    }
    methods = [
        m for m in METHODS if m in fidelity_rows and any(r["method"] == m and r["seed"] in base for r in world_rows)
    ]
    gains = [
        fmean(r["area"] - base[r["seed"]]["area"] for r in world_rows if r["method"] == m and r["seed"] in base)
        for m in methods
    ]
    if len(methods) > 2:
        correlation = prediction([fidelity_rows[m]["rank"] for m in methods], gains)
        print(f"\nfidelity against area less grpo, {', '.join(methods)}: rank correlation {correlation:+.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/agent_study.jsonl"))
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, help="so many of every world")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--fidelity", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(train_run(arguments.one[0], arguments.one[1], int(arguments.one[2]))))
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    if not arguments.report:
        run_all(arguments.out, arguments.worlds, arguments.methods, arguments.seeds, arguments.jobs)
    report(read_rows(arguments.out), arguments.fidelity)


if __name__ == "__main__":
    main()
