"""Flow methods on points of a ring or on pictures of letters: held-out reward and diversity, five paired seeds.

    python studies/flows.py                                # what studies/flows.jsonl lacks, seed by seed; resumes
    python studies/flows.py --setting letters              # what studies/flows_letters.jsonl lacks
    python studies/flows.py dance_grpo awm --store FILE    # these arms, into another file
    python studies/flows.py --table studies/flows.jsonl
    python studies/flows.py mix_grpo awm --setting letters --steps 180 --first-seed 1000 --seeds 1 --store FILE

ring     the model "flow", 8 denoising steps; 120 training steps of 4 conditions and 8 samples each. A sample is right
         within .3 of its point.
letters  the model "diffusers:letters", 10 denoising steps, all its parameters trained; 60 training steps of 5 letters
         and 8 samples each. The reward is that of examples/bold_letters.py: how bold the five most similar of 2,000
         drawn letters are, 0 for those of another letter. A sample is right if another reader, a logistic regression
         on 2,000 other drawings, takes it for the letter asked for.

A setting is the same for all methods but for their levels of noise: as many rewards and one rate, 3e-4, which is the
authors' for LoRA. Every policy is measured in the same way before, and at three times: 32 samples of the ODE for each
held-out condition, from the same initial noise. Diversity is the mean distance of two samples of one condition (of
pictures per pixel, the root of the mean square, values in [0, 1]). It falls as more of them are right; that of the
right ones alone falls where a policy collapses; below a quarter of what it was at the start it is called collapsed.
"""

import argparse
import base64
import functools
import importlib.util
import itertools
import json
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression

import gxpo
from gxpo.environments.tasks.letters import draw_letters
from gxpo.environments.tasks.points import target
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.training.callbacks import Callback
from gxpo.training.statistics import mean_interval, paired_interval

HERE = Path(__file__).resolve().parent
REWARD = HERE.parent / "examples" / "bold_letters.py"
SEEDS, SAMPLES = 5, 32
RADIUS = 0.3
SHOWN = 3  # pictures of each letter that a row has, of the first and of the last measurement
ARMS = {
    "flow_grpo": {"sampling.temperature": 0.7},
    "dance_grpo": {"sampling.temperature": 0.3},
    "mix_grpo": {"sampling.temperature": 0.7},
    "awm": {},
    "dgpo_diffusion": {},
    "diffusion_nft": {},
}


# ---------------------------------------------------------------- what is measured
def pair_figures(right: torch.Tensor, distance: torch.Tensor) -> dict[str, float]:
    """Share of right samples, and mean distance of two samples, and of two right ones, of a condition.

    right [G, n] bool, distance [G, n, n]
    """
    pairs = torch.ones(distance.shape[1:]).triu(1).bool().expand_as(distance)
    both_right = pairs & right[:, :, None] & right[:, None, :]
    return {
        "accuracy": float(right.double().mean()),
        "diversity": float(distance[pairs].mean()),
        "diversity_right": float(distance[both_right].mean()),
    }


def ring_figures(degrees: Sequence[int], points: torch.Tensor, model: Any) -> dict[str, Any]:
    """Figures of points [G, n, 2] of the conditions."""
    right = (points - target(torch.tensor(degrees))[:, None]).norm(dim=2) <= RADIUS
    return pair_figures(right, torch.cdist(points, points))


@functools.cache
def reader() -> LogisticRegression:
    """What says which letter a picture is; it has seen neither the model's letters nor the reward's."""
    pixels, classes, _ = draw_letters(2000, seed=2)
    return LogisticRegression(max_iter=500).fit(pixels.reshape(len(pixels), -1), classes)


@functools.cache
def bold_letter() -> Callable[[Any, str], float]:
    """Reward of the example."""
    spec = importlib.util.spec_from_file_location("bold_letters", REWARD)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.bold_letter


def letter_figures(classes: Sequence[int], latents: torch.Tensor, model: Any) -> dict[str, Any]:
    """Figures of pictures [G, n, 64] of the classes, and a few of the pictures themselves."""
    n_classes, n, _ = latents.shape
    grey = model.pictures(latents.flatten(0, 1))[..., 0]  # [G n, 8, 8] uint8
    pixels = torch.tensor(grey.reshape(n_classes, n, -1) / 255)
    asked = np.repeat(classes, n)
    right = torch.tensor(reader().predict(pixels.flatten(0, 1).numpy()) == asked).view(n_classes, n)
    rewards = [bold_letter()(Image.fromarray(x), str(c)) for x, c in zip(grey, asked, strict=True)]
    shown = np.ascontiguousarray(grey.reshape(n_classes, n, 64)[:, :SHOWN])
    return {
        "reward": float(np.mean(rewards)),
        **pair_figures(right, torch.cdist(pixels, pixels) / pixels.shape[2] ** 0.5),
        "brightness": float(pixels.mean()),
        "pictures": base64.b64encode(shown.tobytes()).decode(),
    }


@dataclass(frozen=True)
class Setting:
    """What is trained on what, and how often it is measured."""

    keys: dict[str, Any]
    steps: int
    every: int
    conditions: int  # held out
    condition: str  # entry of a task's info
    denoising: int
    figures: Callable[[Sequence[int], torch.Tensor, Any], dict[str, Any]]


SETTINGS = {
    "ring": Setting(
        {"model": "flow", "task": "points", "tasks.per_step": 4}, 120, 40, 30, "degrees", 8, ring_figures
    ),
    "letters": Setting(
        {"model": "diffusers:letters", "task": "pictures", "reward": f"{REWARD}:bold_letter", "tasks.per_step": 5},
        60, 20, 10, "class", 10, letter_figures,
    ),
}  # fmt: skip
COMMON = {
    "rollout.group_size": 8, "optim.lr": 3e-4, "trainer.rollouts_every": 0, "doctor.every": 0,
    "trainer.checkpoint_every": 0,
}  # fmt: skip


class Measure(Callback):
    """Figures of samples of the ODE at every evaluation, by step."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.by_step: dict[int, dict[str, Any]] = {}

    def on_evaluation(self, figures: Any, run: Any) -> None:
        s, engine = self.setting, run.trainer.engine
        conditions = [task.info[s.condition] for task in run.trainer.source.held_out(s.conditions)]
        requests = [
            Request((c,), tuple(StreamKey(0, 0, f"{g}/{c}", i) for i in range(SAMPLES)))
            for g, c in enumerate(conditions)
        ]
        groups = engine.sample(requests, Sampling(temperature=0.0, max_new_tokens=s.denoising + 1))
        last = torch.tensor(np.array([[c.extras["latent"][-1] for c in group] for group in groups])).double()
        self.by_step[figures["step"]] = s.figures(conditions, last, engine.model)


# ---------------------------------------------------------------- runs
def run(setting: Setting, name: str, seed: int, keys: dict[str, Any]) -> dict:
    """One run: its figures by step."""
    measure, start = Measure(setting), time.process_time()
    settings = {
        **COMMON, "sampling.max_new_tokens": setting.denoising + 1, "eval.tasks": setting.conditions,
        "eval.every": setting.every, **setting.keys, **ARMS[name], **keys,
    }  # fmt: skip
    model, task = settings.pop("model"), settings.pop("task")
    with tempfile.TemporaryDirectory() as folder:
        gxpo.train(
            model, task, name, setting.steps, out=Path(folder) / "run", seed=seed, set=settings, callbacks=[measure],
            progress="none",
        )  # fmt: skip
    by_step = measure.by_step
    for step in sorted(by_step)[1:-1]:
        by_step[step].pop("pictures", None)
    return {"arm": name, "seed": seed, "by_step": by_step, "seconds": round(time.process_time() - start, 1)}


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
        first = next(iter(by_seed.values()))
        keys = [key for key, x in first["0"].items() if isinstance(x, float)]
        for step, key in itertools.product(sorted(first, key=int)[1:], keys):
            seeds = sorted(by_seed)
            before, after = ([by_seed[s][k][key] for s in seeds] for k in ("0", step))
            means = [sum(x) / len(x) for x in (before, after)]
            text = f"{arm:15} {step:>4} {key:16} seeds {len(seeds)}  {means[0]:.3f} -> {means[1]:.3f}"
            if len(seeds) > 1:
                text += "  change {:+.3f} to {:+.3f}".format(*paired_interval(before, after))
            shared = sorted(set(seeds) & set(rows.get("flow_grpo", {})))
            if arm != "flow_grpo" and len(shared) > 1:
                apart = [by_seed[s][step][key] - rows["flow_grpo"][s][step][key] for s in shared]
                text += "  less flow_grpo {:+.3f} to {:+.3f}".format(*mean_interval(apart))
            print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("arms", nargs="*", default=list(ARMS))
    parser.add_argument("--setting", choices=SETTINGS, default="ring")
    parser.add_argument("--store", type=Path, help="file of the rows")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first-seed", type=int, default=0, help="pilots have seeds of their own, from 1000 on")
    parser.add_argument("--lr", type=float, help="another rate, into a --store of its own")
    parser.add_argument("--steps", type=int, help="more or fewer training steps, into a --store of its own")
    parser.add_argument("--table", type=Path, help="print the figures of this file; run nothing")
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.table)
        return
    if (arguments.lr or arguments.steps) and not arguments.store:
        parser.error("--lr and --steps need a --store: rows of a file are of one rate and of as many steps")
    name = "flows" if arguments.setting == "ring" else f"flows_{arguments.setting}"
    store = arguments.store or HERE / f"{name}.jsonl"
    setting = SETTINGS[arguments.setting]
    if arguments.steps:
        setting = replace(setting, steps=arguments.steps, every=max(1, arguments.steps // 3))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=HERE
    )
    there = {(row["arm"], row["seed"]) for row in read(store)}
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for arm in arguments.arms:
            if (arm, seed) not in there:
                keys = {"optim.lr": arguments.lr} if arguments.lr else {}
                row = {**run(setting, arm, seed, keys), "commit": commit.stdout.strip()}
                with store.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{arm} seed {seed}: {row['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
