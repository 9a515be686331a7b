"""Flow methods on points of a ring: held-out accuracy and diversity before and after, five paired seeds.

    python studies/flows.py dance_grpo awm          # these arms, or all; a line of JSON for each run
    python studies/flows.py --table studies/flows.jsonl

An arm is 40 training steps of 4 conditions and 8 samples each (as many rewards for every method), on the model "flow"
with 8 denoising steps. Accuracy is of samples with the run's own noise; diversity is the mean distance of two samples
of one condition in the first and in the last step: how far a policy has collapsed. Rates were set before, from the
authors' learning rates for LoRA (3e-4), and are the same for all.
"""

import itertools
import json
import math
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import gxpo

SEEDS = range(5)
ARMS = {
    "flow_grpo": {"sampling.temperature": 0.7},
    "dance_grpo": {"sampling.temperature": 0.3},
    "mix_grpo": {"sampling.temperature": 0.7},
    "awm": {},
    "dgpo_diffusion": {},
    "diffusion_nft": {},
}
SETTINGS = {
    "tasks.per_step": 4, "rollout.group_size": 8, "optim.lr": 3e-4, "sampling.max_new_tokens": 9, "eval.tasks": 30,
    "eval.samples": 8, "eval.every": 40, "trainer.rollouts_every": 1, "doctor.every": 0,
}  # fmt: skip


def diversity(file: Path) -> float:
    """Mean distance of two samples of one condition, from the texts of a file of rollouts."""
    points = defaultdict(list)
    for line in file.read_text().splitlines():
        row = json.loads(line)
        points[row["group"]].append([float(x) for x in re.findall(r"[+-][0-9.]+", row["turns"][0]["action_text"])])
    pairs = [math.dist(a, b) for group in points.values() for a, b in itertools.combinations(group, 2)]
    return sum(pairs) / len(pairs)


def run(name: str, seed: int) -> dict:
    """One run: accuracy before and after, diversity of the first and of the last rollouts."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        gxpo.train("flow", "points", name, 40, out=out, seed=seed, set=SETTINGS | ARMS[name])
        evaluations = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
        files = sorted((out / "rollouts").glob("step-*.jsonl"))
        return {
            "arm": name, "seed": seed, "before": evaluations[0]["eval_accuracy"],
            "after": evaluations[-1]["eval_accuracy"],
            "diversity_before": diversity(files[0]), "diversity_after": diversity(files[-1]),
        }  # fmt: skip


def table(file: Path) -> None:
    """Means over seeds, with the interval of the paired change."""
    rows = defaultdict(list)
    for line in file.read_text().splitlines():
        row = json.loads(line)
        rows[row["arm"]].append(row)
    for arm, runs in rows.items():
        gains = [r["after"] - r["before"] for r in runs]
        mean, n = sum(gains) / len(gains), len(gains)
        spread = math.sqrt(sum((x - mean) ** 2 for x in gains) / max(n - 1, 1))
        means = {k: sum(r[k] for r in runs) / n for k in ("before", "after", "diversity_before", "diversity_after")}
        shown = "  ".join(f"{k} {x:.3f}" for k, x in means.items())
        print(f"{arm:16} seeds {n}  {shown}  gain {mean:+.3f} +- {2.776 * spread / math.sqrt(n):.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--table"]:
        table(Path(sys.argv[2]))
    else:
        for arm, number in itertools.product(sys.argv[1:] or ARMS, SEEDS):
            print(json.dumps(run(arm, number)), flush=True)
