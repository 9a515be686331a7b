"""A comparison made by hand: 4 seeds, base, two arms and a control, on 8 held-out tasks.

Seed s of an arm starts at .2, is at middle + s/100 when half its tokens are spent and at end + s/100 when all are. The
figures of arms and differences are chosen, not computed; what tests expect is worked out beside them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from gxpo.compare.results import Arm, ArmSummary, Budget, Comparison, Difference, Estimate, Kind, Point, RunResult

SEEDS = 4
NONE = math.nan
# label, kind, keys, measure at half of the budget and at its end (of seed 0), tasks right at the end
ARMS: tuple[tuple[str, Kind, dict[str, Any], float, float, str], ...] = (
    ("rloo", "arm", {"method": "rloo"}, 0.3, 0.405, "11110000"),
    ("grpo", "base", {"method": "grpo"}, 0.3, 0.4, "11100000"),
    ("shuffled", "control", {"method": "grpo", "scoring.shuffle": True}, 0.2, 0.19, "10000000"),
    ("dr_grpo", "arm", {"method": "dr_grpo", "optim.lr": 0.0003}, 0.35, 0.45, "11011100"),
)


def estimate(mean: float, half: float, p: float = NONE) -> Estimate:
    return Estimate(mean, mean - half, mean + half, SEEDS, spread=half / 2, p=p)


def run(label: str, seed: int, middle: float, end: float, right: str) -> RunResult:
    values = (0.2, middle + seed / 100, end + seed / 100)
    points = [Point(5 * i, 50_000 * i, 10 * i, 30.0 * i, v) for i, v in enumerate(values)]
    failed = label == "rloo" and seed == 3
    return RunResult(
        label,
        seed,
        f"runs/{label}/seed-{seed}",
        points[:2] if failed else points,
        before={f"task {i}": 0.0 for i in range(8)},
        # seed 3 of every arm has the last task right as well
        after={f"task {i}": float(c == "1" or (seed == 3 and i == 7)) for i, c in enumerate(right)},
        discarded_rollouts=16 * seed,
        judge_tokens=1000.0 if label == "dr_grpo" else NONE,
        figures={"eval_length": 12.5, "eval_odd": math.inf},
        trouble="the disk was full" if failed else "",
    )


def summary(label: str, kind: Kind, keys: dict[str, Any], middle: float, end: float, right: str) -> ArmSummary:
    return ArmSummary(
        Arm(label, keys, kind),
        [run(label, s, middle, end, right) for s in range(SEEDS)],
        start=estimate(0.2, 0.01),
        end=estimate(end + 0.015, 0.012),
        area=estimate(middle, 0.009),
        middle=estimate(end + 0.015, 0.011),
        gain=estimate(end - 0.185, 0.015),
        collapsed=1 if label == "shuffled" else 0,
        failed={3: "the disk was full"} if label == "rloo" else {},
        tokens=100_000.0,
        updates=20.0,
        seconds=204.0,
        discarded=24.0,
    )


DIFFERENCES = (
    Difference(
        "rloo", "grpo", estimate(0.005, 0.03, 0.62), estimate(0.0, 0.02), estimate(0.53, 0.2), 0.62, 140, "undecided",
        "rloo can't be told from grpo: n too small to say; about 140 seeds would",
    ),
    Difference(
        "dr_grpo", "grpo", estimate(0.05, 0.0213, 0.0101), estimate(0.03, 0.01), estimate(0.94, 0.05), 0.0202, 4,
        "better", "dr_grpo is better than grpo by .050 (95 % .029 to .071; 4 seeds, p .02 after Holm)",
    ),
    Difference(
        "shuffled", "grpo", estimate(-0.21, 0.04, 0.0004), estimate(-0.1, 0.02), estimate(0.0, 0.0), NONE, 4, "worse",
        "shuffled is worse than grpo by .210 (95 % .170 to .250; 4 seeds, p <.001)",
    ),
)  # fmt: skip


def make_comparison(**changes: Any) -> Comparison:
    """The comparison, with fields of it changed."""
    comparison = Comparison(
        setting="sums",
        measure="eval_accuracy",
        better="more",
        budget=Budget("tokens", 100_000),
        keys={"task": "arithmetic", "model": "tiny", "rollout.group_size": 8},
        arms=[summary(*a) for a in ARMS],
        differences=DIFFERENCES,
        commands=["gxpo compare grpo dr_grpo rloo --task arithmetic --seeds 4 --budget 100000"],
        notes=["rloo: 1 of 4 runs ended before its budget"],
        versions={"gxpo": "0.1.0", "commit": "0123abc", "python": "3.11.9"},
    )
    return dataclasses.replace(comparison, **changes)


def undecided(needed: dict[str, int | None]) -> Comparison:
    """The comparison in which no arm is told from the base; arm -> the seeds that it would need."""
    actual = [
        dataclasses.replace(d, verdict="undecided", seeds_needed=needed[d.arm], sentence=f"{d.arm}: not told from grpo")
        for d in DIFFERENCES
        if d.arm in needed
    ]
    kept_summaries = [summary(*a) for a in ARMS if a[0] in needed or a[0] == "grpo"]
    return make_comparison(differences=actual, arms=kept_summaries)
