"""Studies: every run that lists of experiments name and the store lacks, so many at a time; resumes where it was ended.

    python scripts/study.py studies/claims.yaml studies/remedies.yaml --plan     # runs, and how long they take
    python scripts/study.py studies/claims.yaml --hours 4
    python scripts/study.py studies/claims.yaml --only two_grpo --seeds 20
    python scripts/study.py --pack                                               # new rows into studies/runs.jsonl.gz

A list has `settings` (keys, budget, measure) and `experiments` (setting, seeds, base, arms, `first_seed` where it isn't
0, and under `varied` a second setting with its arms). Runs of equal configuration and seed are made once, whoever asks
for them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base import yamltext
from gxpo.compare.arms import with_origin
from gxpo.compare.jobs import STOPPED, Job, Local
from gxpo.parts.options import flatten_keys
from gxpo.training import config
from study_rows import append, digest, missing, pack, read_store, row_of

HERE = Path(__file__).resolve().parent.parent
STORE = HERE / "studies" / "runs.jsonl"
FOREVER = 1_000_000  # steps: the budget ends a run
POINTS = 4  # evaluations in a run, after the first
QUIET = {"trainer.rollouts_every": 0, "doctor.every": 0, "trainer.checkpoint_every": 0, "eval.every": 0}


def read_list(path: Path) -> dict[str, Any]:
    """Read a list of experiments with its settings, as plain dictionaries."""
    return yamltext.plain(yamltext.load(path.read_text(encoding="utf-8"), str(path)), str(path))


def keys_of(setting: Mapping[str, Any], arm: Mapping[str, Any]) -> dict[str, Any]:
    """Merge all keys of an arm's run but the seed: the setting's, the arm's over them, the budget."""
    limits = {f"trainer.max_{unit}": amount for unit, amount in setting["budget"].items()}
    defaults = {"trainer.steps": FOREVER, "eval.points": POINTS, **QUIET, **limits}
    setting_keys = config.over({}, flatten_keys(with_origin({**defaults, **setting["keys"]}, "setting")))
    settings = config.over(setting_keys, flatten_keys(with_origin(arm.get("keys", {}), "arm")))
    return {k: s.value for k, s in settings.items()}


def sides(plan: Mapping[str, Any], experiment: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], list[Any], int]]:
    """Yield (setting, arms with the base first, seeds) of an experiment and of its varied condition."""
    for part in (experiment, experiment.get("varied")):
        if part and part.get("arms") is not None:
            seeds = part.get("seeds", experiment["seeds"])
            base = part.get("base") or experiment["base"]
            yield plan["settings"][part.get("setting", experiment["setting"])], [base, *part["arms"]], seeds


def list_runs(
    lists: Sequence[Mapping[str, Any]], *, only: Sequence[str] = (), skip: Sequence[str] = (), seeds: int | None = None
) -> list[tuple[dict[str, Any], int]]:
    """List every (keys, seed), seed by seed, so that what is there at any time has all arms."""
    runs = []
    for plan in lists:
        for experiment in plan["experiments"]:
            if (only and experiment["id"] not in only) or experiment["id"] in skip:
                continue
            for setting, arms, n in sides(plan, experiment):
                first = experiment.get("first_seed", 0)
                for seed in range(first, first + (seeds or n)):
                    runs += [(seed, keys_of(setting, arm)) for arm in arms]
    return [({**keys, "seed": seed}, seed) for seed, keys in sorted(runs, key=lambda pair: pair[0])]


def seconds_of(lists: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Map each configuration to the CPU seconds of a run, as its experiment expects."""
    seconds: dict[str, float] = {}
    for plan in lists:
        for experiment in plan["experiments"]:
            for setting, arms, _ in sides(plan, experiment):
                seconds |= {digest(keys_of(setting, arm)): experiment.get("seconds_per_run", 10) for arm in arms}
    return seconds


def run(
    lists: Sequence[Mapping[str, Any]], *, hours: float, workers: int, folder: Path, store: Path = STORE, **which: Any
) -> int:
    """Make what is missing for at most so many hours; return the number of runs that are still missing."""
    todo = missing(list_runs(lists, **which), read_store(store))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE, check=True
    )
    until, left = time.monotonic() + 3600 * hours, len(todo)
    runner = Local(workers)
    # the doctor reads the rollouts of a run that records some, before its directory goes
    jobs = [
        Job(folder / digest(keys) / f"seed-{seed}", keys, keep=bool(keys["trainer.rollouts_every"]))
        for keys, seed in todo
    ]
    start = time.monotonic()
    try:
        for job, trouble in runner(jobs):
            if trouble.startswith(STOPPED):
                print(f"{job.path}: {trouble}", flush=True)
                continue
            row = row_of(job.path, job.keys, trouble=trouble, commit=commit.stdout.strip())
            append(store, row)
            shutil.rmtree(job.path)
            left -= 1
            figures = [e.get("eval_accuracy") for e in row["evaluations"]]
            print(
                f"{left} left, {(time.monotonic() - start) / (len(todo) - left):.1f} s each: {job.keys['method']} "
                f"{job.path.parent.name} seed {row['seed']}: {figures[0] if figures else None} -> "
                f"{figures[-1] if figures else None} {trouble}",
                flush=True,
            )
            if time.monotonic() > until:
                break
    finally:
        runner.close()
    return left


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lists", nargs="*", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="ids of experiments")
    parser.add_argument("--skip", nargs="*", default=[], help="ids of experiments to leave out")
    parser.add_argument("--seeds", type=int, help="so many, instead of each experiment's own")
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=HERE / "runs" / "studies", help="for runs under way")
    parser.add_argument("--store", type=Path, default=STORE, help="file of the runs that there are")
    parser.add_argument("--plan", action="store_true", help="say what is missing and how long it takes; run nothing")
    parser.add_argument(
        "--pack", action="store_true", help="move finished rows into the compressed archive; run nothing"
    )
    arguments = parser.parse_args()
    if arguments.pack:
        pack(arguments.store)
        return
    if not arguments.lists:
        parser.error("give a list of experiments, as studies/claims.yaml")
    lists = [read_list(path) for path in arguments.lists]
    which = {"only": arguments.only, "skip": arguments.skip, "seeds": arguments.seeds}
    todo = missing(list_runs(lists, **which), read_store(arguments.store))
    cost = seconds_of(lists)
    total = sum(cost[digest(keys)] for keys, _ in todo)
    print(
        f"{len(todo)} runs missing, about {total / 60 / arguments.workers:.0f} minutes with {arguments.workers} workers"
    )
    if arguments.plan:
        return
    if run(
        lists, hours=arguments.hours, workers=arguments.workers, folder=arguments.folder, store=arguments.store, **which
    ):
        sys.exit("not all runs were made; the same command goes on")


if __name__ == "__main__":
    main()
