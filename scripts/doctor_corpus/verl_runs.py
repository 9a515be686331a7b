"""Make the verl runs of the doctor's corpus: `verl_runs.py [build|held] [NAME...]`. Runs that exist are left alone.

A run lands in OUT/{build,held}/ID; truth.json is beside the halves. Needs the wheel of verl 0.9.1, unpacked where
`VERL_SOURCE` says, and torch, transformers, omegaconf and orjson.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402
from corpus_split import digest, is_claimed, write  # noqa: E402
from verl_policy import sums, warm_start  # noqa: E402
from verl_recipes import RECIPES, Recipe, exact  # noqa: E402

ROOT = Path(os.environ.get("DOCTOR_CORPUS", "corpus"))
OUT = ROOT / "verl"
STARTS = {"plain": (0.45, 0.65, 0.03), "good": (0.8, 0.93, 0.02)}  # band of greedy accuracy, errors in the solutions


def seed_of(recipe: Recipe) -> int:
    return int(digest(f"seed {recipe.name}")[:6], 16) % 1000


def make(recipe: Recipe, folder: Path) -> dict[str, Any]:
    from verl_loop import Run, Setup

    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    leave, start = recipe.leave, time.time()
    options = {"score": exact, "rows": sums(400, 1), "held": sums(64, 2), "seed": seed_of(recipe)}
    options |= {"steps": 24 if recipe.kind == "sick" else 36, **recipe.set}
    options["loggers"] = tuple(x for x in leave if x in ("file", "console", "rounded"))
    options |= {"dumps": "rollouts" in leave, "val_dumps": "validation" in leave, "config": "config" in leave}
    run = Run(Setup(**options), warm_start(ROOT / "verl_warm" / recipe.start, *STARTS[recipe.start]), folder)
    rows = run.fit()
    return {"seconds": round(time.time() - start), "outcome": outcome(rows)}


def outcome(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures by which a person sees what became of it, whatever the run has written."""

    def ends(key: str) -> list[float]:
        values = [float(r[key]) for r in rows if key in r]
        k = max(1, len(values) // 5)
        return [round(sum(x) / len(x), 4) for x in (values[:k], values[-k:]) if x]

    keys = (
        "critic/score/mean",
        "response_length/mean",
        "response_length/clip_ratio",
        "actor/entropy",
        "actor/grad_norm",
    )
    more = ("training/rollout_probs_diff_mean", "training/rollout_actor_probs_pearson_corr", "actor/pg_clipfrac")
    cores = [[k for k in r if k.startswith("val-core") and "/mean@" in k] for r in rows]
    values = [round(float(r[ks[0]]), 3) for r, ks in zip(rows, cores, strict=True) if ks]
    return {"steps": len(rows), "val-core": values, **{k: ends(k) for k in (*keys, *more)}}


def main(words: list[str]) -> None:
    halves = [a for a in words if a in ("build", "held")] or ["build", "held"]
    names = [a for a in words if a not in ("build", "held")]
    split_entries = write("verl", RECIPES)
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "truth.json"
    for recipe in RECIPES:
        half, run = split_entries[recipe.name]["half"], split_entries[recipe.name]["id"]
        name, truth = run.replace("run", "verl"), json.loads(path.read_text()) if path.exists() else {}
        if half not in halves or (names and recipe.name not in names):
            continue
        if name in truth and not names:
            outcome = truth[name]["outcome"]
        else:
            if is_claimed(name):
                continue
            try:
                result = make(recipe, OUT / half / run)
            except Exception:
                traceback.print_exc()
                continue
            print(recipe.name, name, result, flush=True)
            outcome = result["outcome"]
        truth = json.loads(path.read_text()) if path.exists() else {}
        truth[name] = {
            "kind": recipe.kind,
            "expect": list(recipe.expect),
            "half": half,
            "recipe": recipe.name,
            "cause": recipe.cause,
            "seed": seed_of(recipe),
            "leave": list(recipe.leave),
            "directory": f"{half}/{run}",
            "outcome": outcome,
        }
        path.write_text(json.dumps(dict(sorted(truth.items())), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
