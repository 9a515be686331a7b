"""Make the gxpo runs of the doctor's corpus: `gxpo_runs.py [build|held] [NAME...]`. Runs that exist are left alone.

A run lands in OUT/{build,held}/ID as `gxpo train` leaves it, without checkpoints; truth.json is beside the halves.
Reward and data files stay in OUT/work/ID: their text would tell what is wrong.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import os
import random
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from corpus_split import digest, is_claimed, write  # noqa: E402
from gxpo_recipes import BASE, RECIPES, Recipe  # noqa: E402

OUT = Path(os.environ.get("DOCTOR_CORPUS", "corpus")) / "gxpo"
KEPT = ("config.yaml", "metrics.jsonl", "evaluations.jsonl", "evaluations", "rollouts")


# ---------------------------------------------------------------- policies
def policy(name: str) -> Path:
    """Return the directory of a prepared start: the demo's own, a good one, one that has mastered the task."""
    from gxpo.training.models.warmup import Recipe as Warmup
    from gxpo.training.models.warmup import warm_start

    more = {
        "base": None,
        "good": Warmup(habits=0.1, slips=0.05, low=0.65, high=0.97, check_every=10, checked_on=200, max_steps=600),
        "master": Warmup(habits=0.0, slips=0.0, low=0.985, high=1.0, check_every=50, max_steps=1500),
    }
    return warm_start("arithmetic", recipe=more[name])


# ---------------------------------------------------------------- data
def _sums(n: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    pairs = draw.sample([(a, b) for a in range(10, 100) for b in range(10, 100)], n)
    return [(f"{a}+{b}=", str(a + b)) for a, b in pairs]


def _lines(path: Path, rows: list[tuple[str, str]]) -> None:
    path.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in rows))


def sums(folder: Path, seed: int) -> None:
    """Write 1,000 sums."""
    _lines(folder / "data.jsonl", _sums(1000, seed))


def shifted_sums(folder: Path, seed: int) -> None:
    """Write 1,000 sums, each with the answer of the row before: a join that is off by one."""
    rows = _sums(1000, seed)
    _lines(folder / "data.jsonl", [(p, rows[i - 1][1]) for i, (p, _) in enumerate(rows)])


def few_sums(folder: Path, seed: int) -> None:
    """Write 12 sums to train on, 200 others held out."""
    rows = _sums(212, seed)
    _lines(folder / "data.jsonl", rows[:12])
    _lines(folder / "held.jsonl", rows[12:])


# ---------------------------------------------------------------- hooks on the trainer
def _wrap_sampler(trainer: Any, change: Callable[..., Any], after: Callable[..., Any] | None = None) -> None:
    """Wrap the sampler of training (temperature above 0): `change` requests and sampling, then the completions."""
    engine = trainer.engine
    sample = engine.sample

    def sample_changed(requests: Any, sampling: Any) -> Any:
        if sampling.temperature == 0:
            return sample(requests, sampling)
        completions = sample(*change(requests, sampling))
        return completions if after is None else [[after(c) for c in group] for group in completions]

    engine.sample = sample_changed


def one_stream_a_group(trainer: Any) -> None:
    _wrap_sampler(
        trainer,
        lambda r, s: ([dataclasses.replace(x, streams=(x.streams[0],) * len(x.streams)) for x in r], s),
    )


def hotter_sampler(trainer: Any) -> None:
    _wrap_sampler(trainer, lambda r, s: (r, dataclasses.replace(s, temperature=1.4)))


def nucleus_sampler(trainer: Any) -> None:
    _wrap_sampler(
        trainer,
        lambda r, s: (r, dataclasses.replace(s, top_p=0.8)),
        lambda c: dataclasses.replace(c, support=None),
    )


def shifted_logprobs(trainer: Any) -> None:
    _wrap_sampler(
        trainer,
        lambda r, s: (r, s),
        lambda c: dataclasses.replace(c, logprobs=[*c.logprobs[1:], *c.logprobs[:1]]),
    )


def eos_not_recognised(trainer: Any) -> None:
    engine = trainer.engine
    sample = engine.sample
    engine.stop_ids = ()
    engine.sample = lambda requests, sampling: sample(requests, dataclasses.replace(sampling, stop_ids=()))


def stale_sampler(trainer: Any) -> None:
    from gxpo.sampling.engines.torch import TorchEngine

    trainer.engine = TorchEngine(copy.deepcopy(trainer.learner.model), trainer.tokenizer, device="cpu")


def optimiser_elsewhere(trainer: Any) -> None:
    optimiser = trainer.learner.optimiser
    step = optimiser.step

    def step_in_vain() -> float:
        import torch

        before = {n: p.detach().clone() for n, p in optimiser.parameter_by_name.items()}
        norm = step()
        with torch.no_grad():
            for n, p in optimiser.parameter_by_name.items():
                p.copy_(before[n])
        return norm

    optimiser.step = step_in_vain


def _wrap_credit(trainer: Any, change: Callable[..., Any]) -> None:
    assign_credit = trainer.assign_credit

    def assign_changed(forest: Any, tools: Any) -> Any:
        read, signals, credit, weight = assign_credit(forest, tools)
        return read, signals, change(read, credit), weight

    trainer.assign_credit = assign_changed


def advantage_sign(trainer: Any) -> None:
    _wrap_credit(trainer, lambda forest, credit: -credit)


def advantage_rows(trainer: Any) -> None:
    import torch

    generator = torch.Generator().manual_seed(5)

    def permute(forest: Any, credit: Any) -> Any:
        n = forest.n_trajectories
        mean_R = torch.zeros(n, dtype=credit.dtype).index_reduce(
            0, forest.path_trajectory, credit, "mean", include_self=False
        )
        return mean_R[torch.randperm(n, generator=generator)][forest.path_trajectory]

    _wrap_credit(trainer, permute)


# ---------------------------------------------------------------- one run
def seed_of(recipe: Recipe) -> int:
    return int(digest(f"seed {recipe.name}")[:6], 16) % 1000


def make(recipe: Recipe, half: str, name: str) -> dict[str, Any]:
    """Train in OUT/work/ID and copy what a run leaves to its half; return its entry of truth.json."""
    from gxpo.parts.definition import SettingValue
    from gxpo.training import config
    from gxpo.training.loop import Trainer

    work = OUT / "work" / name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    os.chdir(work)
    seed = seed_of(recipe)
    shorter = {"trainer.steps": 32, "tasks.per_step": 8} if recipe.kind == "sick" else {}
    settings = {**BASE, **shorter, "seed": seed, **recipe.set}
    if recipe.reward:
        (work / "reward.py").write_text(recipe.reward)
        if "scoring.weights" not in settings:
            settings["reward"] = "reward.py:score"
    if recipe.data:
        globals()[recipe.data](work, seed)
    if recipe.policy:
        (work / "policy").symlink_to(policy(recipe.policy))
        settings["model"] = "policy"
    resolved = config.resolve({k: SettingValue(v, "train.yaml") for k, v in settings.items() if v is not None})
    start, stream = time.time(), io.StringIO()
    with redirect_stderr(stream), warnings.catch_warnings():
        warnings.simplefilter("always")
        trainer = Trainer(resolved, out="run")
        if recipe.hook:
            globals()[recipe.hook](trainer)
        try:
            trainer.train()
        except Exception:
            traceback.print_exc()
        finally:
            trainer.close()
    (work / "stderr.txt").write_text(stream.getvalue())
    return {"seconds": round(time.time() - start), "outcome": copy_run(work / "run", OUT / half / name)}


def copy_run(run: Path, target: Path) -> dict[str, Any]:
    """Copy what is kept of a run; return its outcome."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in KEPT:
        if (run / name).is_dir():
            shutil.copytree(run / name, target / name)
        elif (run / name).exists():
            shutil.copy(run / name, target / name)
    round_logprobs(target)
    return outcome(target)


def entry_of(recipe: Recipe, place: dict[str, str], outcome: dict[str, Any]) -> dict[str, Any]:
    """Return what truth.json says of a run."""
    return {
        "kind": recipe.kind,
        "expect": list(recipe.expect),
        "half": place["half"],
        "recipe": recipe.name,
        "cause": recipe.cause,
        "seed": seed_of(recipe),
        "directory": f"{place['half']}/{place['id']}",
        "outcome": outcome,
    }


def round_logprobs(run: Path) -> None:
    """Round log-probs to four decimals, which halves the archive; nothing else is changed."""
    for path in [*run.glob("rollouts/*.jsonl"), *run.glob("evaluations/*.jsonl")]:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for turn in (t for row in rows for t in row["turns"] if "logprob" in t):
            turn["logprob"] = [None if x is None else round(x, 4) for x in turn["logprob"]]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def outcome(run: Path) -> dict[str, Any]:
    """Return the figures by which a person sees what became of it."""
    rows = [json.loads(x) for x in (run / "metrics.jsonl").read_text().splitlines()]
    evals = [json.loads(x) for x in (run / "evaluations.jsonl").read_text().splitlines()]

    def ends(key: str) -> list[float | None]:
        values = [r[key] for r in rows if r.get(key) is not None]
        k = max(1, len(values) // 5)
        return [round(sum(x) / len(x), 4) if x else None for x in (values[:k], values[-k:])]

    keys = (
        "reward_mean",
        "success_rate",
        "zero_signal_groups",
        "length_mean",
        "truncated_rate",
        "entropy",
        "grad_norm",
    )
    return {"steps": len(rows), "eval": [round(e["eval_accuracy"], 3) for e in evals], **{k: ends(k) for k in keys}}


def main(words: list[str]) -> None:
    halves = [a for a in words if a in ("build", "held")] or ["build", "held"]
    names = [a for a in words if a not in ("build", "held")]
    split_entries = write("gxpo", RECIPES)
    OUT.mkdir(parents=True, exist_ok=True)
    for recipe in RECIPES:
        place, truth = split_entries[recipe.name], read_truth()
        name = place["id"].replace("run", "gxpo")
        if place["half"] not in halves or (names and recipe.name not in names):
            continue
        if name in truth and not names:
            save(name, entry_of(recipe, place, truth[name]["outcome"]))
            continue
        if is_claimed(name):
            continue
        try:
            result = make(recipe, place["half"], place["id"])
        except Exception:
            traceback.print_exc()
            continue
        save(name, entry_of(recipe, place, result["outcome"]))
        print(recipe.name, name, result, flush=True)


def read_truth() -> dict[str, Any]:
    return json.loads((OUT / "truth.json").read_text()) if (OUT / "truth.json").exists() else {}


def save(name: str, entry: dict[str, Any]) -> None:
    (OUT / "truth.json").write_text(json.dumps(dict(sorted((read_truth() | {name: entry}).items())), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
