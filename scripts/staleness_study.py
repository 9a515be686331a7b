"""What age of rollouts costs and saves: `async.max_staleness` 0, 1, 2 and 4 on one configuration, several seeds.

    python scripts/staleness_study.py                                  # the demo; goes on where it was stopped
    python scripts/staleness_study.py examples/gsm8k_qwen.yaml --set trainer.steps=50
    python scripts/staleness_study.py --staleness 0 4 --variants objectives   # which objectives bear it
    python scripts/staleness_study.py --report                         # the table of what has run

A line of studies/staleness.jsonl per run. Seeds are paired: runs of one see the same tasks and the same noise of the
sampler. With one update a batch every ratio over the proximal policy is 1, so objectives differ in what they make of
age only where their ratio is over the behaviour policy, or a weight corrects for it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from gxpo.parts.definition import SettingValue
from gxpo.training import config
from gxpo.training.loop import Trainer
from gxpo.training.statistics import mean_interval

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "studies" / "staleness.jsonl"
STALENESS, SEEDS = (0, 1, 2, 4), (0, 1, 2)
VARIANTS: dict[str, dict[str, Any]] = {"plain": {}, "corrected": {"weight.mismatch": "truncated"}}
BEHAVIOUR = {"objective.ratio_over": "behaviour"}
OBJECTIVES: dict[str, dict[str, Any]] = {  # credit is that of the file's method
    "decoupled_ppo": {
        "weight.mismatch": "truncated", "weight.mismatch.cap": 5.0, "weight.mismatch_mask": "mismatch_mask",
        "weight.mismatch_mask.token_min": 0.0, "weight.mismatch_mask.token_max": 5.0,
    },
    "clip": BEHAVIOUR,
    "gspo": {"objective": "gspo", **BEHAVIOUR},
    "cispo": {"objective": "cispo", **BEHAVIOUR},
    "spo_simple": {"objective": "spo_simple", **BEHAVIOUR},
    "dppo": {"objective": "dppo_divergence"},
    "topr": {"objective": "topr"},
    "vespo": {"objective": "vespo"},
}  # fmt: skip


def train_run(file: str, staleness: int, seed: int, variant: str, sets: list[str]) -> dict[str, Any]:
    """Train a run; return held-out accuracy before and after, and means over its steps."""
    keys = {"async.max_staleness": staleness, "seed": seed, **(VARIANTS | OBJECTIVES)[variant]}
    settings = config.over(config.read(file), config.parse_set(sets))
    settings = config.over(settings, {key: SettingValue(value, "study") for key, value in keys.items()})
    with tempfile.TemporaryDirectory(prefix="gxpo-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(config.resolve(settings), out=Path(folder) / "run")
        start, load = time.perf_counter(), os.getloadavg()[0]
        try:
            trainer.train()
        finally:
            trainer.close()
        run_seconds = time.perf_counter() - start
        rows = trainer.metrics_file.read()
        accuracies = [row["eval_accuracy"] for row in trainer.evaluations.read()]

    def mean(name: str) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return fmean(values) if values else None

    return {
        "configuration": Path(file).stem,
        "sets": sets,
        "variant": variant,
        "max_staleness": staleness,
        "seed": seed,
        "steps": len(rows),
        "before": accuracies[0],
        "after": accuracies[-1],
        **{name: mean(name) for name in ("staleness_mean", "mismatch_kl", "grad_norm", "success_rate")},
        "time_wait_s": sum(row.get("time_wait_s", 0.0) for row in rows),
        "time_sample_s": sum(row["time_sample_s"] for row in rows),
        "time_update_s": sum(row["time_update_s"] for row in rows),
        "time_step_s": sum(row["time_step_s"] for row in rows),
        "time_run_s": run_seconds,
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "load_before": load,
        "versions": config.versions(),
    }


def report(rows: list[dict[str, Any]]) -> None:
    """Print the table: accuracy, divergence, and where the time went."""
    print("| variant | async.max_staleness | seeds | held-out accuracy (95%) | less 0 of the same seed (95%) "
          "| mismatch KL | waited | sampling | updates | steps in all |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    after = {(*_kind(r), r["max_staleness"], r["seed"]): r["after"] for r in rows}
    kinds = dict.fromkeys((*_kind(r), r["max_staleness"]) for r in rows)
    for kind in sorted(kinds):
        kind_rows = [r for r in rows if (*_kind(r), r["max_staleness"]) == kind]
        low, high = mean_interval([r["after"] for r in kind_rows])
        baseline = (*kind[:-2], "plain" if kind[-2] == "corrected" else kind[-2], 0)
        differences = [r["after"] - after[(*baseline, r["seed"])] for r in kind_rows if (*baseline, r["seed"]) in after]
        difference_text = (
            "{:+.3f} ({:+.3f} to {:+.3f})".format(fmean(differences), *mean_interval(differences))
            if kind[-1] and differences
            else "-"
        )
        mismatch_kls = [r["mismatch_kl"] for r in kind_rows if r["mismatch_kl"] is not None]
        seconds = (fmean(r[f"time_{name}_s"] for r in kind_rows) for name in ("wait", "sample", "update", "step"))
        print(f"| {kind[-2]} | {kind[-1]} "
              f"| {len(kind_rows)} | {fmean(r['after'] for r in kind_rows):.3f} ({low:.3f} to {high:.3f}) "
              f"| {difference_text} | {f'{fmean(mismatch_kls):.1e}' if mismatch_kls else '-'} | "
              + " | ".join(f"{x:.0f} s" for x in seconds) + " |")  # fmt: skip


def _kind(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what runs of a row of the table have in common, but for their age."""
    return (row["configuration"], tuple(row["sets"]), row["variant"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=str(ROOT / "examples" / "arithmetic.yaml"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--staleness", type=int, nargs="+", default=list(STALENESS))
    parser.add_argument("--variants", nargs="+", choices=[*VARIANTS, *OBJECTIVES, "objectives"], default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    variants = [v for name in arguments.variants for v in (OBJECTIVES if name == "objectives" else (name,))]
    rows = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.is_file() else []
    if not arguments.report:
        done = {(r["configuration"], tuple(r["sets"]), r["variant"], r["max_staleness"], r["seed"]) for r in rows}
        for seed in arguments.seeds:
            for staleness in arguments.staleness:
                for variant in variants:
                    if variant == "corrected" and not staleness:
                        continue  # nothing to correct: its runs are compared with "plain"
                    if (Path(arguments.file).stem, tuple(arguments.set), variant, staleness, seed) in done:
                        continue
                    row = train_run(arguments.file, staleness, seed, variant, arguments.set)
                    rows.append(row)
                    with open(arguments.out, "a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
                    print(f"seed {seed}, max_staleness {staleness}, {variant}: {row['before']:.3f} to "
                          f"{row['after']:.3f} in {row['time_step_s']:.0f} s", flush=True)  # fmt: skip
    report(rows)


if __name__ == "__main__":
    main()
