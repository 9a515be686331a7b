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
    "himac": {"rollout.trial": 1.0},  # plans tried out by sampling: greedy, a policy without memory walks in circles
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


def trained(world: str, method: str, seed: int) -> dict[str, Any]:
    """One run: success on held-out tasks before and after, and in training by tokens generated."""
    from gxpo.parts.definition import Stated
    from gxpo.training.config import resolve
    from gxpo.training.loop import Trainer

    place = WORLDS[world]
    keys = {**place.keys, **METHODS[method], "method": method, "seed": seed, "trainer.steps": 10_000}
    held_eval_accuracies: list[float] = []
    curve: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="gxpo-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(resolve({k: Stated(v, "study") for k, v in keys.items()}), out=Path(folder) / "run")
        try:
            held_eval_accuracies.append(trainer.evaluate().figures["eval_accuracy"])
            while trainer.budget.generated_tokens < place.budget:
                row = trainer.step()
                curve.append((row["generated_tokens"], row["success_rate"]))
            held_eval_accuracies.append(trainer.evaluate().figures["eval_accuracy"])
        finally:
            trainer.close()
    return {
        "world": world,
        "method": method,
        "seed": seed,
        "before": held_eval_accuracies[0],
        "after": held_eval_accuracies[1],
        "steps": len(curve),
        "tokens": curve[-1][0],
        "area": area(curve, place.budget),
        "curve": curve,
    }


def area(curve: Sequence[tuple[int, float]], budget: int) -> float:
    """Mean success in training over the tokens generated."""
    total, last = 0.0, 0
    for tokens, success in curve:
        total += (min(tokens, budget) - last) * success
        last = min(tokens, budget)
    return total / budget


def run_all(out: Path, worlds: Sequence[str], methods: Sequence[str], seeds: int | None, jobs: int) -> None:
    """Every run that `out` does not hold, seed by seed, so many at a time in processes of one thread each."""
    done = {(r["world"], r["method"], r["seed"]) for r in read(out)}
    expected = [
        (world, method, seed)
        for world in worlds
        for seed in range(seeds or WORLDS[world].seeds)
        for method in METHODS
        if method in methods and (world, method, seed) not in done
    ]
    lock = Lock()

    def one(job: tuple[str, str, int]) -> None:
        command = [sys.executable, __file__, "--one", job[0], job[1], str(job[2])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        got = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if got.returncode:
            print(f"{' '.join(map(str, job))} failed: {got.stderr.strip().splitlines()[-1:]}", flush=True)
            return
        line = got.stdout.strip().splitlines()[-1]
        with lock, out.open("a") as file:
            file.write(line + "\n")
        row = json.loads(line)
        print(f"{job[0]} {job[1]} seed {job[2]}: {row['before']:.3f} -> {row['after']:.3f}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, expected))


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def report(rows: Sequence[Mapping[str, Any]], fidelity: Path | None) -> None:
    """A table a world: success after, how many runs fell below half of what they began with, and paired differences to
    grpo."""
    from gxpo.training.statistics import mean_interval

    for world, place in WORLDS.items():
        own_rows = [r for r in rows if r["world"] == world]
        if not own_rows:
            continue
        base = {r["seed"]: r for r in own_rows if r["method"] == "grpo"}
        print(f"\n{world}: {place.budget:,} generated tokens a run\n")
        print(
            "| method | runs | steps | before | after | fell | area | after less grpo (95%, paired) | area less grpo |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for method in METHODS:
            mine = [r for r in own_rows if r["method"] == method]
            if not mine:
                continue
            cells = [fmean(r[k] for r in mine) for k in ("steps", "before", "after", "area")]
            output = []
            for key in ("after", "area"):
                gaps = [r[key] - base[r["seed"]][key] for r in mine if r["seed"] in base]
                verdict = ""
                if len(gaps) > 3:  # fewer are too few for one
                    low, high = mean_interval(gaps)
                    verdict = f" ({low:+.3f} to {high:+.3f})"
                output.append(f"{fmean(gaps):+.3f}{verdict}" if gaps else "-")
            fell = sum(r["after"] < r["before"] / 2 for r in mine)
            print(
                f"| {method} | {len(mine)} | {cells[0]:.0f} | {cells[1]:.3f} | {cells[2]:.3f} | {fell} | "
                f"{cells[3]:.3f} | {output[0]} | {output[1]} |"
            )
        if fidelity is not None:
            predicted(own_rows, base, json.loads(fidelity.read_text())["rows"], place.keys["task"])


def predicted(
    own: Sequence[Mapping[str, Any]],
    base: Mapping[int, Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    task: str,
) -> None:
    """The rank correlation of fidelity with the paired area less grpo, over the methods that have both."""
    from gxpo.bench.fidelity import prediction

    known_values = {
        r["name"].partition("/")[2]: r for r in rows if r["name"].startswith(f"{task}/") and r.get("rank") is not None
    }
    both = [m for m in METHODS if m in known_values and any(r["method"] == m and r["seed"] in base for r in own)]
    gain = [
        fmean(r["area"] - base[r["seed"]]["area"] for r in own if r["method"] == m and r["seed"] in base) for m in both
    ]
    if len(both) > 2:
        actual = prediction([known_values[m]["rank"] for m in both], gain)
        print(f"\nfidelity against area less grpo, {', '.join(both)}: rank correlation {actual:+.2f}")


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
        print(json.dumps(trained(arguments.one[0], arguments.one[1], int(arguments.one[2]))))
        return
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    if not arguments.report:
        run_all(arguments.out, arguments.worlds, arguments.methods, arguments.seeds, arguments.jobs)
    report(read(arguments.out), arguments.fidelity)


if __name__ == "__main__":
    main()
