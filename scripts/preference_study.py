"""What preference methods make of logged rollouts: DPO, SimPO and supervised training on one data set a seed.

    python scripts/preference_study.py            # goes on where it was stopped; about 15 minutes of one core
    python scripts/preference_study.py --report   # the table of what has run

The warm-started small model answers arithmetic tasks, 8 times each; its rollouts and verdicts are the data. Each arm
trains the same start on them, without sampling: pairs by verdict, likelihood of the right ones, or both. Learning
rates were chosen on seed 1000, before seeds 0 to 4 were run: dpo and simpo among 1e-5, 2e-5, 3e-5 and 1e-4,
supervised among 3e-5, 1e-4 and 3e-4, dpo + nll at 1e-4 alone. A line of studies/preferences.jsonl a run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from gxpo.compare.arms import with_origin
from gxpo.parts.options import dotted
from gxpo.training import config
from gxpo.training.loop import Trainer
from gxpo.training.statistics import mean_interval, paired_interval

RESULTS = Path(__file__).parents[1] / "studies" / "preferences.jsonl"
SEEDS = (0, 1, 2, 3, 4)
TASK = {"model": "tiny", "task": "arithmetic", "tasks.per_step": 32, "sampling.max_new_tokens": 24, "doctor.every": 0}
SAMPLED = {  # the start policy, which a learning rate of nothing leaves where it is
    "method": "grpo", "optim.lr": 1e-12, "trainer.steps": 8, "rollout.group_size": 8, "eval.tasks": 1, "eval.every": 0,
    "trainer.rollouts_every": 1,
}  # fmt: skip
LOGGED = {"rollout": "logged", "trainer.steps": 24, "eval.tasks": 500, "eval.every": 0, "trainer.rollouts_every": 0}
ARMS: dict[str, dict[str, Any]] = {
    "dpo": {"method": "dpo", "optim.lr": 3e-5},
    "dpo + nll": {"method": "dpo", "objective.nll": 1.0, "optim.lr": 1e-4},
    "simpo": {"method": "simpo", "optim.lr": 2e-5},
    "supervised": {"method": "grpo", "objective": "positive_likelihood", "objective.coef": 1.0, "optim.lr": 3e-4},
}


def train_run(keys: dict[str, Any], out: Path) -> list[float]:
    """Train a run; return held-out accuracy at each evaluation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(config.resolve(config.over({}, dotted(with_origin(keys, "study")))), out=out)
        try:
            trainer.train()
        finally:
            trainer.close()
    return [row["eval_accuracy"] for row in trainer.evaluations.read()]


def train_arms(seed: int, missing: list[str]) -> Iterator[dict[str, Any]]:
    """Train the arms that are missing on the seed's data, which is sampled anew."""
    with tempfile.TemporaryDirectory(prefix="gxpo-") as folder:
        data = Path(folder) / "data"
        train_run({**TASK, **SAMPLED, "seed": seed}, data)
        for arm in missing:
            keys = {**TASK, **LOGGED, **ARMS[arm], "seed": seed, "rollout.file": str(data / "rollouts")}
            before, *_, after = train_run(keys, Path(folder) / arm)
            yield {"arm": arm, "seed": seed, "before": before, "after": after, "keys": ARMS[arm]}


def report(rows: list[dict[str, Any]]) -> None:
    """Print accuracy of each arm, its gain over the start, and its difference to supervised training, paired by
    seed."""
    print("| arm | seeds | start | held-out accuracy | gain (95%) | less supervised (95%) |\n|---|---|---|---|---|---|")
    rows_by_arm = {arm: {r["seed"]: r for r in rows if r["arm"] == arm} for arm in ARMS}
    for arm, row_by_seed in rows_by_arm.items():
        if len(row_by_seed) < 2:
            continue
        gains = [r["after"] - r["before"] for r in row_by_seed.values()]
        low, high = mean_interval(gains)
        seeds = sorted(row_by_seed.keys() & rows_by_arm["supervised"].keys())
        difference = "-"
        if arm != "supervised" and len(seeds) > 1:
            pair = [[rows_by_arm["supervised"][s]["after"] for s in seeds], [row_by_seed[s]["after"] for s in seeds]]
            a, b = paired_interval(*pair)
            difference = f"{fmean(pair[1]) - fmean(pair[0]):+.3f} ({a:+.3f} to {b:+.3f})"
        print(f"| {arm} | {len(row_by_seed)} | {fmean(r['before'] for r in row_by_seed.values()):.3f} "
              f"| {fmean(r['after'] for r in row_by_seed.values()):.3f} | {fmean(gains):+.3f} "
              f"({low:+.3f} to {high:+.3f}) | {difference} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--store", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.store.read_text().splitlines()] if arguments.store.is_file() else []
    for seed in () if arguments.report else arguments.seeds:
        done = {row["arm"] for row in rows if row["seed"] == seed}
        if missing := [arm for arm in ARMS if arm not in done]:
            for row in train_arms(seed, missing):
                rows.append(row)
                with arguments.store.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"seed {seed}, {row['arm']}: {row['before']:.3f} to {row['after']:.3f}", flush=True)
    report(rows)


if __name__ == "__main__":
    main()
