"""Train twenty compositions of three methods, drawn at random, on the demo's task; nothing may become infinite.

    python scripts/checks/random_compositions.py --steps 20 --seed 0 --clamps

A triple that gxpo refuses, when it is composed or when it runs, has another one drawn in its place; both are counted.
`--clamps` lists every clamp in the source of credits, weights, objectives and rewards that changed a number, by line
and share of numbers changed. Exit code 1 where a run fails, a figure is not finite, or no parameter has moved.
"""

from __future__ import annotations

import argparse
import linecache
import math
import random
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch.overrides import TorchFunctionMode

import gxpo
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.methods import METHODS

# samplers in latents, which nothing for text composes with; prompts with a draft, which the tiny model has never read
ELSEWHERE = {name for name, x in METHODS.items() if "noise" in str(x.keys.get("rollout"))} | {"igrpo"}
READS = {  # a component that the demo's reward does not compute under the name that the method expects
    "ssl_sweet_spot": {"reward.shape.tiered.component": "format"},
    "spectral_po": {"reward.shape.correct_prefix.component": "format"},
}
SMALL = {"tasks.per_step": 4, "rollout.group_size": 4, "sampling.max_new_tokens": 24, "eval.tasks": 8}


WATCHED = {"credit", "weighting", "objectives", "rewards"}
BOUNDS = {"clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "clip", "nan_to_num"}


class Clamps(TorchFunctionMode):
    """Counts, by line of a part's source, the numbers that clamps were given and those that they changed."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        before = args[0].detach().clone() if name in BOUNDS else None
        out = func(*args, **(kwargs or {}))
        if before is not None and (site := self._site()) is not None:
            counts = self.sites[site]
            counts[0] += before.numel()
            counts[1] += int(((out.detach() != before) & ~before.isnan()).sum())
        return out

    @staticmethod
    def _site() -> tuple[str, int] | None:
        frame = sys._getframe(2)
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if "gxpo" in path.parts:
                return (str(path), frame.f_lineno) if path.parent.name in WATCHED else None
            frame = frame.f_back
        return None

    def report(self) -> None:
        """Print active clamps, one a line."""
        active = {k: v for k, v in self.sites.items() if v[1]}
        print(f"{len(self.sites)} clamps were run, {len(active)} changed a number:")
        for (path, line), (total, changed) in sorted(active.items()):
            where = f"{Path(path).parent.name}/{Path(path).name}:{line}"
            print(f"  {where:36s} {changed / total:8.2%}  {linecache.getline(path, line).strip()}")


def compositions(seed: int) -> Iterator[tuple[str, str]]:
    """Yield triples in random order, each once, with the reason for which it can't be composed ("" where it can)."""
    rng, names, specs = random.Random(seed), sorted(set(METHODS) - ELSEWHERE), set[str]()
    while True:
        spec = "+".join(sorted(rng.sample(names, 3)))
        if spec in specs:
            continue
        specs.add(spec)
        try:
            gxpo.method(spec)
            yield spec, ""
        except ConfigError as error:
            yield spec, str(error)


def settings(spec: str) -> dict[str, Any]:
    """Return what a composition needs to run on the demo's task."""
    method = gxpo.method(spec)
    keys = {k: v for k, v in SMALL.items() if not k.startswith("rollout.") or k in method.keys}
    for definition in method.definitions:
        keys |= READS.get(definition.name, {})
    if getattr(method.rollout, "policies", None):
        keys["learner.lora_rank"] = 4
    return keys


def train_run(spec: str, steps: int) -> str:
    """Train a run; return a line on it. GxpoError where it is refused, RuntimeError where something is wrong."""
    with tempfile.TemporaryDirectory(prefix="gxpo-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = gxpo.train("tiny", "arithmetic", spec, steps, out=Path(folder) / "run", set=settings(spec))
        rows = run.metrics  # read from the folder
    figures = {k: [row[k] for row in rows if row[k] is not None] for k in ("reward_mean", "grad_norm")}
    numbers = [v for row in rows for v in row.values() if isinstance(v, float)]
    if not all(math.isfinite(v) for v in numbers):
        raise RuntimeError("a figure is not finite")
    if not all(bool(p.isfinite().all()) for p in run.trainer.learner.snapshot().values()):
        raise RuntimeError("a parameter is not finite")
    empty = rows[-1]["empty_steps"]
    if empty >= steps:
        raise RuntimeError("no step had any credit")
    rewards, largest = figures["reward_mean"], max(figures["grad_norm"])
    return f"reward {rewards[0]:.2f} -> {rewards[-1]:.2f}, grad norm at most {largest:.3g}, empty steps {empty}"


def main() -> int:
    """Train the compositions; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clamps", action="store_true")
    arguments = parser.parse_args()
    clamps = Clamps() if arguments.clamps else None
    n_tried = n_wrong = n_refused = 0
    for spec, reason in compositions(arguments.seed):
        if n_tried == arguments.count:
            break
        if reason:
            n_refused += 1
            continue
        try:
            with clamps or nullcontext():
                line = train_run(spec, arguments.steps)
        except GxpoError as error:
            n_refused += 1
            print(f"{spec:60s} refused: {error}", flush=True)
            continue
        except RuntimeError as error:
            n_wrong, line = n_wrong + 1, f"WRONG: {error}"
        n_tried += 1
        print(f"{spec:60s} {line}", flush=True)
    if clamps is not None:
        clamps.report()
    print(f"{n_tried - n_wrong} of {n_tried} trained {arguments.steps} steps; {n_refused} triples were refused")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
