"""Flow methods on points of a ring: held-out accuracy and diversity during 120 steps, five paired seeds.

    python studies/flows.py                                # what studies/flows.jsonl lacks, seed by seed; resumes
    python studies/flows.py dance_grpo awm --store FILE    # these arms, into another file
    python studies/flows.py --table studies/flows.jsonl

An arm is 120 training steps of 4 conditions and 8 samples each (as many rewards for every method), on the model "flow"
with 8 denoising steps. Rates were set before, from the authors' learning rates for LoRA (3e-4), and are the same for
all. Every policy is measured in the same way after 0, 40, 80 and 120 steps: 32 samples of the ODE for each of 30
held-out conditions, from the same initial noise. Diversity is the mean distance of two samples of one condition. It
falls as more of them are right; that of the right ones alone falls where a policy collapses.
"""

import argparse
import itertools
import json
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import gxpo
from gxpo.environments.tasks.points import target
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.training.callbacks import Callback
from gxpo.training.statistics import mean_interval, paired_interval

HERE = Path(__file__).resolve().parent
SEEDS = range(5)
STEPS, EVERY = 120, 40
CONDITIONS, SAMPLES, RADIUS = 30, 32, 0.3
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
    "eval.every": EVERY, "trainer.rollouts_every": 0, "doctor.every": 0, "trainer.checkpoint_every": 0,
}  # fmt: skip


def figures_of(points: torch.Tensor, degrees: torch.Tensor) -> dict[str, float]:
    """Share of right samples, and mean distance of two samples, and of two right ones, of a condition.

    points [G, n, 2], degrees [G]
    """
    right = (points - target(degrees)[:, None]).norm(dim=2) <= RADIUS
    distance = torch.cdist(points, points)
    pairs = torch.ones(points.shape[1], points.shape[1]).triu(1).bool().expand_as(distance)
    both_right = pairs & right[:, :, None] & right[:, None, :]
    return {
        "accuracy": float(right.double().mean()),
        "diversity": float(distance[pairs].mean()),
        "diversity_right": float(distance[both_right].mean()),
    }


class Measure(Callback):
    """Figures of samples of the ODE at every evaluation, by step."""

    def __init__(self) -> None:
        self.by_step: dict[int, dict[str, float]] = {}

    def on_evaluation(self, figures: Any, run: Any) -> None:
        degrees = [task.info["degrees"] for task in run.trainer.source.held_out(CONDITIONS)]
        requests = [
            Request((d,), tuple(StreamKey(0, 0, f"{g}/{d}", i) for i in range(SAMPLES))) for g, d in enumerate(degrees)
        ]
        groups = run.trainer.engine.sample(requests, Sampling(temperature=0.0, max_new_tokens=9))
        points = torch.tensor([[c.extras["latent"][-1].tolist() for c in group] for group in groups]).double()
        self.by_step[figures["step"]] = figures_of(points, torch.tensor(degrees))


def run(name: str, seed: int) -> dict:
    """One run: its figures by step."""
    measure, start = Measure(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        gxpo.train(
            "flow", "points", name, STEPS, out=Path(folder) / "run", seed=seed, set=SETTINGS | ARMS[name],
            callbacks=[measure], progress="none",
        )  # fmt: skip
    return {"arm": name, "seed": seed, "by_step": measure.by_step, "seconds": round(time.process_time() - start, 1)}


def read(file: Path) -> list[dict]:
    """Rows of a store; a last line that a kill cut off is left out."""
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.is_file() else []


def table(file: Path) -> None:
    """Means over seeds at every evaluation, with 95 % intervals of the paired change since the start, and of the paired
    difference from flow_grpo."""
    rows: dict[str, dict[int, dict]] = defaultdict(dict)
    for row in read(file):
        rows[row["arm"]][row["seed"]] = row["by_step"]
    for arm, by_seed in rows.items():
        for step, key in itertools.product(map(str, range(EVERY, STEPS + 1, EVERY)), next(iter(by_seed.values()))["0"]):
            seeds = sorted(by_seed)
            before, after = ([by_seed[s][k][key] for s in seeds] for k in ("0", step))
            means = [sum(x) / len(x) for x in (before, after)]
            text = f"{arm:15} {step:>4} {key:16} seeds {len(seeds)}  {means[0]:.3f} -> {means[1]:.3f}"
            if len(seeds) > 1:
                text += "  change {:+.3f} to {:+.3f}".format(*paired_interval(before, after))
            shared = sorted(set(seeds) & set(rows["flow_grpo"]))
            if arm != "flow_grpo" and len(shared) > 1:
                apart = [by_seed[s][step][key] - rows["flow_grpo"][s][step][key] for s in shared]
                text += "  less flow_grpo {:+.3f} to {:+.3f}".format(*mean_interval(apart))
            print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("arms", nargs="*", default=list(ARMS))
    parser.add_argument("--store", type=Path, default=HERE / "flows.jsonl")
    parser.add_argument("--table", type=Path, help="print the figures of this file; run nothing")
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.table)
        return
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=HERE
    )
    there = {(row["arm"], row["seed"]) for row in read(arguments.store)}
    for seed in SEEDS:
        for arm in arguments.arms:
            if (arm, seed) not in there:
                row = {**run(arm, seed), "commit": commit.stdout.strip()}
                with arguments.store.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
