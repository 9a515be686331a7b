"""Whether the interval of comparisons covers, and whether a planted difference is found with the seeds predicted.

    python scripts/study.py studies/validity.yaml      # makes the runs: one method, 40 seeds
    python scripts/compare_validity.py                 # prints JSON

The runs are split at random into two halves, paired by position, that differ in nothing: the share of splits whose
95% interval holds 0 is its coverage. Then one side gets a difference of known size: of the last evaluation by turning a
share of its wrong verdicts right, of the area by adding a constant. The size is the one that so many seeds find in 80%
of cases by power analysis.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gxpo.base.errors import GxpoError
from gxpo.compare.inference import Spread, area_under_curve, crossed_spread, resolvable, seed_spread, seeds_needed
from gxpo.compare.results import Estimate
from study import STORE, keys_of, read_list, sides
from study_rows import digest, read_store, result_of, with_former

LIST = STORE.parent / "validity.yaml"
ROUNDS = 4  # size of the planted difference -> spread of the planted table -> size...
PILOTS = 20  # splits from which a spread is predicted

Floats = NDArray[np.float64]


class TooFewRuns(GxpoError):
    """The store lacks runs."""


@dataclass(frozen=True)
class Runs:
    """Independent runs of one arm: `right` [runs, held-out tasks] in the last evaluation, `area` [runs]."""

    right: Floats
    area: Floats


def read_runs(path: Path, store: Path) -> Runs:
    """Read the runs of the first experiment of a list. Raises TooFewRuns where the store lacks some."""
    plan = read_list(path)
    experiment = plan["experiments"][0]
    setting, arms, seeds = next(iter(sides(plan, experiment)))
    name, row_by_run = digest(keys_of(setting, arms[0])), with_former(read_store(store))
    rows = [
        row_by_run[name, seed]
        for seed in range(seeds)
        if (name, seed) in row_by_run and not row_by_run[name, seed]["trouble"]
    ]
    if len(rows) < seeds:
        raise TooFewRuns(
            f"{store} has {len(rows)} of the {seeds} runs of {experiment['id']}: python scripts/study.py {path} "
            "makes the others"
        )
    results = [result_of(row, arms[0]["label"]) for row in rows]
    if not all(r.after for r in results):
        raise TooFewRuns(f"{store}: a run of {experiment['id']} has no verdicts by task")
    unit, amount = next(iter(setting["budget"].items()))
    tasks = sorted(results[0].after)
    return Runs(
        np.array([[r.after[t] for t in tasks] for r in results]),
        np.array([area_under_curve(r.points, unit, amount) for r in results]),
    )


def splits(n: int, seeds: int, n_splits: int, key: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Draw two sides of `seeds` runs each from n without replacement, `n_splits` times."""
    rng = np.random.default_rng(key)
    for _ in range(n_splits):
        order = rng.permutation(n)
        yield order[:seeds], order[seeds : 2 * seeds]


def flip_verdicts(right: Floats, share: float, key: int) -> Floats:
    """Turn a share of the wrong verdicts right, each by itself."""
    rng = np.random.default_rng(key)
    return np.where((right == 0) & (rng.random(right.shape) < share), 1.0, right)


def coverage(estimates: Sequence[Estimate]) -> dict[str, float]:
    """Return the share of intervals that hold 0, and their mean half-width."""
    return {
        "coverage": float(np.mean([e.holds_zero for e in estimates])),
        "half_width": float(np.mean([(e.high - e.low) / 2 for e in estimates])),
    }


def components(spreads: Sequence[Spread]) -> tuple[float, float]:
    """Return the standard deviation from seed to seed, and the standard error that tasks leave, over several
    spreads."""
    by_seed = float(np.mean([s.by_seed * s.seeds for s in spreads]))
    return math.sqrt(by_seed), math.sqrt(float(np.mean([0.0 if math.isnan(s.by_task) else s.by_task for s in spreads])))


def plant_difference(
    spread: Callable[[float, NDArray[np.int64], NDArray[np.int64], int], Spread], n: int, seeds: int, n_splits: int
) -> dict[str, float | int | None]:
    """Plant a difference of the size that `seeds` find with 80% power, and return the share of splits in which it is
    found.

    spread  (size, runs of the changed side, runs of the other, key) -> spread of the paired difference
    """
    size = 0.0
    for _ in range(ROUNDS):
        pilots = [spread(size, a, b, i) for i, (a, b) in enumerate(splits(n, n // 2, PILOTS, 1))]
        sd, by_task = components(pilots)
        size = resolvable(sd, seeds, by_task)
    estimates = [spread(size, a, b, 1000 + i).estimate() for i, (a, b) in enumerate(splits(n, seeds, n_splits, 2))]
    return {
        "difference": size,
        "sd": sd,
        "error_of_tasks": by_task,
        "seeds_predicted": seeds_needed(size, sd, by_task),
        "seeds": seeds,
        "found": float(np.mean([e.low > 0 for e in estimates])),
        "mean_seen": float(np.mean([e.mean for e in estimates])),
    }


def validity(runs: Runs, *, n_splits: int = 200, seeds: int = 10) -> dict[str, Any]:
    """Measure coverage over random halves, and how many planted differences are found with `seeds` on each side.

    Raises TooFewRuns for fewer than 2 `seeds` runs, or fewer than 8.
    """
    n, tasks = runs.right.shape
    if n < max(8, 2 * seeds):
        raise TooFewRuns(f"{n} runs can't be split into two sides of {max(4, seeds)}: make more")
    halves = list(splits(n, n // 2, n_splits, 0))
    wrong_share = float(np.mean(runs.right == 0))

    def by_flips(size: float, a: NDArray[np.int64], b: NDArray[np.int64], key: int) -> Spread:
        return crossed_spread(flip_verdicts(runs.right[a], size / wrong_share, key) - runs.right[b])

    def by_shift(size: float, a: NDArray[np.int64], b: NDArray[np.int64], key: int) -> Spread:
        del key
        return seed_spread(runs.area[a] + size - runs.area[b])

    return {
        "runs": n,
        "tasks": tasks,
        "splits": n_splits,
        "pairs": n // 2,
        "mean": float(runs.right.mean()),
        "sd": float(runs.right.mean(axis=1).std(ddof=1)),
        "end": coverage([by_flips(0.0, a, b, 0).estimate() for a, b in halves]),
        "area": coverage([by_shift(0.0, a, b, 0).estimate() for a, b in halves]),
        "planted": {
            "end": plant_difference(by_flips, n, seeds, n_splits),
            "area": plant_difference(by_shift, n, seeds, n_splits),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", type=Path, default=LIST, help="list of experiments; the first is taken")
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10, help="on each side, of the planted difference")
    arguments = parser.parse_args()
    try:
        print(
            json.dumps(
                validity(read_runs(arguments.list, arguments.store), n_splits=arguments.splits, seeds=arguments.seeds),
                indent=1,
            )
        )
    except GxpoError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
