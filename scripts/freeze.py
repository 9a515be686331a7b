"""Freeze what the code computes, and compare later code with it: the net under a change that must change nothing.

    python scripts/freeze.py write methods methods.npz     # at the old commit
    python scripts/freeze.py check methods methods.npz     # at the new one; exit code 1 where something differs

methods   advantages, weights, loss and its gradient of every method, and of NAME@paper, on four batteries in sequence
          (ragged groups, unscored rollouts, equal groups, a group of one), memories carried from one to the next
steps     two training steps of every method and of `EXTRA`, from a model that has never learnt anything: metrics and
          the rollouts' records

Numbers agree within a relative tolerance of 1e-9, exact zeros stay exact zeros, texts and integers are equal.
`DIFFERS` lists what changed on purpose and why. `--only NAME...` restricts both.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import io
import json
import sys
import tempfile
import warnings
import zlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.battery import battery, policy_of  # noqa: E402

import gxpo  # noqa: E402
from gxpo.forest import Forest  # noqa: E402
from gxpo.methods import METHODS  # noqa: E402
from gxpo.signals import Signals  # noqa: E402

RTOL, ATOL = 1e-9, 1e-13
LEFT_OUT = ("time_", "memory_")  # metrics that no two runs share

# pattern of KIND/NAME/... -> why it differs from the code before
DIFFERS: dict[str, str] = {
    "steps/step_grpo_router/*": "its tasks' ids name their file without the path to it: the same in any checkout",
}

BATTERIES: tuple[dict[str, Any], ...] = (
    {},
    {"unscored": ("0.2", "2.0")},
    {"rewards": (0.1, 0.7, 1 / 3)},
    {"sizes": (1, 2, 6)},
)

LAKE = {"task": "frozenlake", "tasks.options": {"style": "bare", "size": 3}, "env.max_turns": 4}
EXTRA: dict[str, tuple[str, dict[str, Any]]] = {  # name -> method, keys
    "lake/grpo": ("grpo", LAKE),
    "lake/dapo": ("dapo", LAKE | {"rollout.group_size": 8, "rollout.max_batches": 60, "tasks.per_step": 1}),
    "lake/gigpo": ("gigpo", LAKE),
    "lake/tree_grpo": ("tree_grpo", LAKE),
    "lake/gae_turn": ("gae_turn", LAKE),
    "prompts/replay": ("grpo", {"rollout": "replay", "rollout.group_size": 4}),
    "prompts/windowed": ("grpo", {"rollout": "windowed", "rollout.group_size": 4}),
    "prompts/vote": ("grpo", {"rollout": "vote", "rollout.group_size": 4}),
    "prompts/allotted": ("grpo", {"rollout": "allotted", "rollout.group_size": 4}),
    "prompts/two_updates": ("grpo", {"update.epochs": 2, "update.minibatches": 2}),
    "prompts/twice": ("grpo", {"tasks.per_step": 12, "tasks.options": {"operations": "+", "digits": 1}}),
    "prompts/kl": ("grpo", {"objective.kl.coef": 0.01, "objective.entropy.coef": 0.01}),
    "prompts/gspo_dapo": (
        "gspo+dapo",
        {"rollout.group_size": 4, "objective.clip_high": 0.28, "objective.clip_low": 0.2},
    ),
}


# ---------------------------------------------------------------- credit, weights, gradients
def made_up(method: gxpo.Method, forest: Forest, seed: int) -> Signals:
    """A value for every signal that the method reads, drawn by the signal's name, so that none moves another."""
    sizes = {"R": forest.n_trajectories, "S": forest.n_steps, "P": forest.n_entries, "T": forest.n_tokens}
    names = {*method.needs, *(x for part in method.signals.values() for x in part.provides)}
    out: dict[str, Any] = {}
    for name in sorted(names | {"proximal_logprob", "reference_logprob"}):
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{seed}".encode()))
        axis = Signals({}, method.axes).axis(name)
        shape = (sizes[axis], 3) if name in ("hidden", "embedding") else (sizes[axis],)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name == "teacher_ids":
            out[name] = (7 * torch.arange(sizes["P"])[:, None] + torch.arange(3)) % 60
        elif name == "teacher_logprob":
            out[name] = torch.randn(sizes["P"], 4, generator=generator, dtype=torch.float64).log_softmax(1)
        elif name == "teacher_entropy":
            out[name] = noise.abs().masked_fill(forest.path_trajectory % 2 == 0, torch.nan)
        elif name == "answer_cluster":
            out[name] = 3 * forest.ids("group", axis="R") + (3 * noise).long() % 3
        elif name.partition("@")[0].endswith("logprob"):
            out[name] = forest.path_behaviour_logprob + 0.4 * noise
        else:
            out[name] = noise
    return Signals.of(forest, out, method.axes)


def of_method(spec: str) -> dict[str, Any]:
    """Arrays by "NAME/BATTERY/WHAT"; an error that the method raises stands there as a text."""
    method = gxpo.method(spec).fill(horizon=12.0, max_length=12, total_steps=4)
    out: dict[str, Any] = {"couples": method.couples, "outputs": sorted(method.outputs), "needs": sorted(method.needs)}
    for i, given in enumerate(BATTERIES):
        found: dict[str, Any] = {}
        try:
            _on_battery(method, battery(i, **given), i, found)
        except Exception as error:  # what it refuses is part of what it does
            found["raises"] = type(error).__name__
        out |= {f"{i}/{name}": x for name, x in found.items()}
    return out


def _on_battery(method: gxpo.Method, forest: Forest, seed: int, found: dict[str, Any]) -> None:
    with contextlib.suppress(Exception):  # some of a method's own rewards read texts, which a battery has not
        forest = method.shaped(forest)
    found["outcome"] = forest.outcome
    signals = made_up(method, forest, seed)
    noise = torch.randn(forest.n_entries, generator=torch.Generator().manual_seed(9 + seed), dtype=torch.float64)
    advantages = found["advantages"] = method.advantages(forest, signals, seed)
    targets = method.targets(forest, signals, seed)
    found |= {f"target/{name}": x for name, x in targets.items()}
    signals = Signals.of(forest, {**signals, **targets}, method.axes)
    weight = found["weight"] = method.token_weights(forest, advantages, signals, seed)
    outputs = {"logprob": signals["proximal_logprob"] + 0.6 * noise, "value": 0.1 * noise}
    for name in method.outputs:
        of_tokens = "@" in name or name == "mean_logprob"
        outputs.setdefault(name, outputs["logprob"] - 0.05 * noise if of_tokens else 0.1 * noise + 1.0)
    outputs = {name: x.detach().requires_grad_() for name, x in outputs.items()}
    policy = policy_of(forest, outputs, signals)
    loss = method.loss(forest, policy, advantages=advantages, signals=signals, step=seed)
    found["loss"] = loss.value
    found["metrics"] = {k: v for k, v in loss.metrics.items() if k != "loss"}
    slopes = torch.autograd.grad(loss.value, list(outputs.values()), allow_unused=True)
    found |= {f"slope/{n}": x for n, x in zip(outputs, slopes, strict=True) if x is not None}
    found["active"] = method.active(forest, advantages, weight, signals)
    method.observe(forest)
    method.adjust({"step": seed + 1, **found["metrics"]})


# ---------------------------------------------------------------- whole steps
def parity(completion: str) -> dict[str, float]:
    """Two rewards that a cold model gets half of the time, one of them the verdict."""
    return {"correct": float(sum(map(ord, completion)) % 2), "format": float(len(completion) % 2)}


def of_steps(name: str) -> dict[str, Any]:
    """Metrics of two steps, and the records of what was sampled in each."""
    from tests.test_methods import FLOWS, SMOKE

    spec, extra = EXTRA.get(name, (name, SMOKE.get(name, {})))
    keys: dict[str, Any] = {"tasks.per_step": 4, "sampling.max_new_tokens": 6, "eval.tasks": 2}
    keys["optim.weight_decay"] = 0.0
    keys |= {"rollout.group_size": 4} if "rollout.group_size" in gxpo.method(spec).keys else {}
    keys |= extra
    model, task = keys.pop("model", "tiny:cold"), keys.pop("task", "arithmetic")
    own = name in FLOWS or "reward" in keys
    with tempfile.TemporaryDirectory() as directory:
        run = gxpo.train(model, task, spec, 2, None if own else lambda completion: parity(completion),
                         out=Path(directory) / "run", set=keys)  # fmt: skip
        rows = [{k: v for k, v in row.items() if not k.startswith(LEFT_OUT)} for row in run.metrics]
        records = [json.loads(x) for path in sorted(Path(directory).rglob("rollouts/*")) for x in lines(path)]
        forest = run.trainer.last[0]
    return {"metrics": rows, "records": records, "forest": forest.to_records()}


def lines(path: Path) -> list[str]:
    """The lines of a text file, or of one that is packed."""
    if path.suffix == ".gz":
        import gzip

        return gzip.decompress(path.read_bytes()).decode().splitlines()
    return path.read_text().splitlines() if path.suffix == ".jsonl" else []


# ---------------------------------------------------------------- arrays
def flat(prefix: str, value: Any) -> dict[str, np.ndarray]:
    """Nested values as arrays: numbers, and texts as they are."""
    if isinstance(value, torch.Tensor):
        return {prefix: value.detach().cpu().numpy()}
    if isinstance(value, dict):
        return {k: x for name, v in value.items() for k, x in flat(f"{prefix}/{name}", v).items()}
    if isinstance(value, (list, tuple)):
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.asarray(None)
        if array.dtype.kind in "ifbU" and array.size:
            return {prefix: array}
        if not len(value):
            return {prefix: np.zeros(0)}
        return {k: x for i, v in enumerate(value) for k, x in flat(f"{prefix}/{i}", v).items()}
    return {prefix: np.asarray("null" if value is None else value)}


def equal(a: np.ndarray, b: np.ndarray) -> str | None:
    """None where they agree, else in what they do not."""
    if a.shape != b.shape:
        return f"shape {a.shape} is now {b.shape}"
    if a.dtype.kind in "US" or b.dtype.kind in "US" or a.dtype.kind == "b":
        return None if a.dtype.kind == b.dtype.kind and bool((a == b).all()) else f"{a.flat[0]} is now {b.flat[0]}"
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "other entries are nan"
    a, b = np.nan_to_num(a), np.nan_to_num(b)
    if not np.array_equal(a == 0, b == 0):
        worst = float(np.abs(np.where((a == 0) != (b == 0), a - b, 0)).max())
        return f"other entries are exactly 0 (by up to {worst:.1e})"
    if np.allclose(a, b, rtol=RTOL, atol=ATOL):
        return None
    return f"differs by up to {float(np.abs(a - b).max()):.1e}"


def one(task: tuple[str, str]) -> dict[str, np.ndarray]:
    kind, name = task
    torch.set_num_threads(1)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            found = of_method(name) if kind == "methods" else of_steps(name)
        except Exception as error:
            found = {"raises": f"{type(error).__name__}: {error}"[:300]}
    return flat(f"{kind}/{name}", found)


def names_of(kind: str, only: list[str]) -> list[str]:
    papers = [f"{name}@paper" for name in sorted(METHODS) if METHODS[name].paper_defaults]
    names = [*sorted(METHODS), *(papers if kind == "methods" else EXTRA)]
    return [n for n in names if not only or any(fnmatch.fnmatch(n, pattern) for pattern in only)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("write", "check"))
    parser.add_argument("kind", choices=("methods", "steps"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="names or patterns")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()

    names = names_of(given.kind, given.only)
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        each = list(pool.map(one, [(given.kind, name) for name in names], chunksize=4))
    found = {k: v for part in each for k, v in part.items()}
    if given.do == "write":
        given.file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(given.file, **found)
        raised = sorted(f"{k}: {v}" for k, v in found.items() if k.count("/") == 2 and k.endswith("raises"))
        print("\n".join([*raised, f"{len(names)} {given.kind}, {len(found)} arrays in {given.file}"]))
        return
    with np.load(given.file) as stored:
        before = {k: stored[k] for k in stored.files if k.split("/")[1] in {n.split("/")[0] for n in names}}
    bad: dict[str, list[str]] = {}
    for name in names:
        head = f"{given.kind}/{name}/"
        for key in sorted({k for k in (*before, *found) if k.startswith(head)}):
            if key not in found or key not in before:
                why: str | None = "is gone" if key not in found else "is new"
            else:
                why = equal(before[key], found[key])
            if why and not any(fnmatch.fnmatch(key, pattern) for pattern in DIFFERS):
                bad.setdefault(name, []).append(f"{key} {why}")
    for name, lines_ in bad.items():
        print(f"{name}: {len(lines_)} differ; " + "; ".join(lines_[:3]))
    listed = f", {len(DIFFERS)} listed differences" if DIFFERS else ""
    print(f"{len(names) - len(bad)} of {len(names)} {given.kind} equal{listed}")
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
