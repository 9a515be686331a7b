"""Compare a small run whose processes were killed with the calm one: for `chaos_runs.py`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open

from gxpo.training.metrics import comparable

STEPS, PER_STEP, GROUP = 6, 3, 2  # of every run: steps, tasks a step, rollouts a task


@dataclass(frozen=True)
class Setting:
    """A kind of run: who is killed, its configuration, how many processes torchrun starts, whether servers sample."""

    victims: tuple[str, ...]
    keys: dict[str, Any]
    ranks: int = 1
    served: bool = False
    steps: int = STEPS


@dataclass
class Kill:
    """Who is killed: `delay` seconds after the line of `step` was written (0: after the run began).

    acting  not before a process of that kind has something under way: it plays, scores or samples
    told    the steps that the run had written by then
    """

    victim: str
    step: int
    delay: float
    acting: bool = False
    progress: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """A run that came to its end, or did not.

    kills     that were carried out
    starts    times that a controller was started
    failures  why it did not end, and processes that outlived it
    """

    out: Path
    setting: Setting
    kills: list[Kill] = field(default_factory=list)
    starts: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def training_seconds(self) -> float:
        """Seconds of its steps, as their lines say."""
        return sum(row["time_step_s"] for row in lines(self.out / "metrics.jsonl"))

    @property
    def prompts(self) -> int:
        """Groups in its rollouts."""
        return sum(n // GROUP for step in count_rollouts(self.out) for n in step.values())


COUNTERS = ("sampler_failures",)  # what kills may change


def lines(path: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a file that may be being written."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def count_rollouts(out: Path) -> list[Counter[str]]:
    """Count the rollouts of each task, by step."""
    counts = []
    for path in sorted((out / "rollouts").glob("step-*.jsonl")):
        counts.append(Counter(record["task"] for record in lines(path)))
    return counts


def differences(calm: Outcome, other: Outcome) -> list[str]:
    """List what a run under kills has otherwise than the calm one; nothing, where all is well."""
    problems = list(other.failures)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        calm_rows, rows = (
            [{k: v for k, v in comparable(row).items() if k not in COUNTERS} for row in lines(x.out / name)]
            for x in (calm, other)
        )
        if [r["step"] for r in calm_rows] != [r["step"] for r in rows]:
            problems.append(f"{name} has steps {[r['step'] for r in rows]}")
        for a, b in zip(calm_rows, rows, strict=False):
            if keys := [k for k in {*a, *b} if a.get(k) != b.get(k)]:
                problems.append(f"{name}, step {a['step']}: {', '.join(sorted(keys)[:4])}")
                break
    steps = sorted(p.name for p in (calm.out / "rollouts").glob("step-*.jsonl"))
    for name in steps:
        path = other.out / "rollouts" / name
        if not path.is_file() or path.read_bytes() != (calm.out / "rollouts" / name).read_bytes():
            problems.append(f"other rollouts in {name}")
            break
    sums = [_weights(x.out) for x in (calm, other)]
    if not sums[0] or sums[0] != sums[1]:
        problems.append("the last checkpoint has other tensors")
    return problems + count_errors(other)


def count_errors(outcome: Outcome) -> list[str]:
    """List prompts that were lost or trained twice, counted in the rollouts and, where there is one, in the ledger."""
    problems = []
    steps = count_rollouts(outcome.out)
    if len(steps) != outcome.setting.steps:
        problems.append(f"rollouts of {len(steps)} steps")
    for number, tasks in enumerate(steps, 1):
        if sum(tasks.values()) != PER_STEP * GROUP or any(n % GROUP for n in tasks.values()):
            problems.append(f"step {number} trained {dict(tasks)}")
    ledger = lines(outcome.out / "rollouts" / "ledger.jsonl")
    if outcome.setting.keys.get("async.max_staleness"):
        uses = Counter(place for line in ledger if line["event"] == "consume" for place in line["places"])
        if uses != Counter(range(PER_STEP * outcome.setting.steps)):
            problems.append(f"places used in the ledger: {sorted(uses.items())}")
    return problems


def _weights(out: Path) -> str:
    """Return the checksum of names and values of all tensors of the newest checkpoint; "" where there is none."""
    folders = sorted((out / "checkpoints").glob("step-*"))
    digest = hashlib.sha256()
    for path in sorted(folders[-1].rglob("*.safetensors")) if folders else []:
        with safe_open(path, "numpy") as file:
            for name in sorted(file.keys()):
                digest.update(f"{path.name} {name}".encode() + file.get_tensor(name).tobytes())
    return digest.hexdigest() if folders else ""
