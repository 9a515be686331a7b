"""Which objectives bear having a batch used again: 1, 4 and 16 updates a batch, five seeds each.

    python scripts/off_policy_study.py                 # goes on where it was stopped
    python scripts/off_policy_study.py --report        # the table and the picture of what has run

Every run starts from the same warm start of the demo's task and samples the same number of rollouts; seeds are paired:
objectives see the same tasks and the same sampler's noise at first. A line of results.jsonl per run.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

import gxpo
from gxpo.base.page.chart import svg_chart
from gxpo.training.statistics import mean_interval

OBJECTIVES: dict[str, dict[str, Any]] = {  # what differs from grpo: z-scored credit, sequence mean
    "none": {"objective.surrogate": "unclipped"},
    "reinforce": {"objective.surrogate": "log_likelihood"},
    "ppo": {},
    "gspo": {"objective": "gspo"},
    "gmpo": {"objective": "gmpo"},
    "cispo": {"objective": "cispo"},
    "gvpo": {"objective": "gvpo"},
    "sapo": {"objective": "sapo_gate"},
    "spo": {"objective": "spo_simple"},
    "gppo": {"objective": "gppo"},
}
REUSE, SEEDS, STEPS = (1, 4, 16), (0, 1, 2, 3, 4), 30
RUN = {
    "tasks.per_step": 8,
    "rollout.group_size": 8,
    "sampling.max_new_tokens": 24,
    "optim.lr": 1.5e-4,
    "eval.tasks": 60,
    "trainer.checkpoint_every": 0,
}
CURVES = ("reward_mean", "approx_kl", "entropy", "ratio_max", "clip_fraction")
FALLEN = 0.1  # a run whose reward ends this far below its best tenth of steps has not stayed stable


def train_run(objective: str, reuse: int, seed: int) -> dict[str, Any]:
    """Train one run; return its curves, and its held-out accuracy before and after."""
    keys = {**RUN, **OBJECTIVES[objective], "update.epochs": reuse, "seed": seed}
    with tempfile.TemporaryDirectory(prefix="gxpo-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = gxpo.train("tiny", "arithmetic", "grpo", STEPS, out=Path(folder) / "run", set=keys)
        rows = run.metrics
        lines = (Path(folder) / "run" / "evaluations.jsonl").read_text().splitlines()
    accuracies = [json.loads(line)["eval_accuracy"] for line in lines]
    curves = {name: [row.get(name) for row in rows] for name in CURVES}
    return {
        "objective": objective,
        "reuse": reuse,
        "seed": seed,
        "before": accuracies[0],
        "after": accuracies[-1],
        **curves,
    }


def smooth(curve: list[float | None], width: int = 4) -> list[float]:
    """Average over windows of `width` steps, one after another."""
    values = [math.nan if x is None else x for x in curve]
    return [fmean(values[i : i + width]) for i in range(0, len(values) - width + 1, width)]


def report(rows: list[dict[str, Any]], picture: Path | None) -> None:
    """Print the table: held-out accuracy, KL within the batch, and how many runs fell."""
    print("| objective | updates a batch | runs | held-out accuracy | less ppo at 1 (95%, paired) | KL | fell |")
    print("|---|---|---|---|---|---|---|")
    row_by_run = {(r["objective"], r["reuse"], r["seed"]): r for r in rows}
    rewards: dict[str, list[tuple[float, float]]] = {}
    drifts: dict[str, list[tuple[float, float]]] = {}
    for name in OBJECTIVES:
        for reuse in REUSE:
            cell_rows = [r for r in rows if (r["objective"], r["reuse"]) == (name, reuse)]
            if not cell_rows:
                continue
            gaps = [
                r["after"] - row_by_run["ppo", 1, r["seed"]]["after"]
                for r in cell_rows
                if ("ppo", 1, r["seed"]) in row_by_run
            ]
            low, high = mean_interval(gaps) if len(gaps) > 1 else (math.nan, math.nan)
            kl = fmean(x for r in cell_rows for x in r["approx_kl"] if x is not None)
            reward_curves = [smooth(r["reward_mean"]) for r in cell_rows]
            falls = sum(not (max(curve) - curve[-1] < FALLEN) for curve in reward_curves)
            after = fmean(r["after"] for r in cell_rows)
            print(
                f"| {name} | {reuse} | {len(cell_rows)} | {after:.3f} | {fmean(gaps):+.3f} ({low:+.3f} to {high:+.3f}) "
                f"| {kl:.2g} | {falls} of {len(cell_rows)} |"
            )
            if reuse == max(REUSE) and len(cell_rows) == len(SEEDS):
                kl_curves = [smooth(r["approx_kl"]) for r in cell_rows]
                rewards[name] = [
                    (4.0 * i + 4, fmean(c[i] for c in reward_curves)) for i in range(len(reward_curves[0]))
                ]
                drifts[name] = [(4.0 * i + 4, fmean(c[i] for c in kl_curves)) for i in range(len(kl_curves[0]))]
    title = f"{max(REUSE)} updates a batch"
    if picture is not None and rewards:
        picture.write_text(svg_chart(rewards, title=title, y_label="reward") + "\n")
        kl_path = picture.with_name(f"{picture.stem}_kl.svg")
        kl_path.write_text(svg_chart(drifts, title=title, y_label="KL, nats a token", y_range=(0.0, 1.0)) + "\n")
        print(picture, kl_path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/off_policy"))
    parser.add_argument("--only", nargs="*", default=list(OBJECTIVES))
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(r["objective"], r["reuse"], r["seed"]) for r in rows}
    if not arguments.report:
        for seed in SEEDS:
            for name in arguments.only:
                for reuse in REUSE:
                    if (name, reuse, seed) in done:
                        continue
                    rows.append(train_run(name, reuse, seed))
                    with path.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
                    print(
                        f"{name} x{reuse} seed {seed}: {rows[-1]['before']:.3f} -> {rows[-1]['after']:.3f}", flush=True
                    )
    report(rows, arguments.picture)


if __name__ == "__main__":
    main()
