"""Plan of a trial before it runs: what each arm changes, minutes, tokens and GPU-hours, and when it stops."""

from __future__ import annotations

import math
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import RecordError
from gxpo.compare import foreign, looks, trial_child
from gxpo.compare.results import Arm
from gxpo.compare.trial import DONE, Trial, is_missing, result_of, trouble_of
from gxpo.compare.wording import count, duration
from gxpo.doctor import read as read_log


@dataclass(frozen=True)
class Cost:
    """Cost of the runs that a trial has still to make, at most; None: not known.

    step_seconds, step_tokens  of the runs that tell: an earlier one of the script, or those that the trial has made
    """

    runs: int
    seconds: float | None
    tokens: float | None
    gpu_hours: float | None
    step_seconds: float | None

    def __str__(self) -> str:
        if self.seconds is None or self.step_seconds is None:
            return "minutes are not known before the first run"
        words = f"about {duration(self.seconds)} at {self.step_seconds:.3g} s a step"
        words += f", {count(self.tokens)} generated tokens" if self.tokens else ""
        return words + (f", {self.gpu_hours:.2g} GPU-hours" if self.gpu_hours is not None else "")


def cost_of(trial: Trial, step_seconds: float | None = None, step_tokens: float | None = None, gpus: int = 0) -> Cost:
    """Estimate the cost of the missing runs, by the given cost of a step or else by that of the base's first run."""
    first = trial.path(trial.arms[0], trial.seeds[0])
    if step_seconds is None and (first / DONE).is_file() and not trouble_of(first):
        last = result_of(trial, trial.arms[0], trial.seeds[0]).points[-1]
        step_seconds, step_tokens = last.seconds / last.step, last.tokens / last.step
        step_seconds = None if math.isnan(step_seconds) else step_seconds
    runs = sum(is_missing(trial, a, s) for s in trial.seeds for a in trial.arms)
    seconds = None if step_seconds is None else step_seconds * trial.steps * runs / trial.jobs
    tokens = step_tokens * trial.steps * runs if step_tokens else None
    # A script of TRL trains in one process on one GPU; a command may use all that it sees.
    gpus_used = min(gpus, trial.jobs) if trial.script else gpus
    return Cost(
        runs, seconds, tokens, gpus_used * seconds / 3600 if gpus_used and seconds is not None else None, step_seconds
    )


def visible_gpus() -> int:
    """GPUs of this machine, of those that CUDA_VISIBLE_DEVICES leaves; 0 without nvidia-smi."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    gpus = sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return gpus if visible is None else min(gpus, len([v for v in visible.split(",") if v.strip() not in ("", "-1")]))


def plan_lines(trial: Trial, cost: Cost) -> list[str]:
    """Describe a trial in lines: what each arm changes, runs and their cost, and when it stops."""
    lines = [f"{a.label}: {'as it is' if a.kind == 'base' else _changes(a)}" for a in trial.arms]
    runs = len(trial.arms) * len(trial.seeds)
    at_most = "at most " if trial.sequential or trial.minutes or trial.tokens else ""
    start = f", from {trial.start}" if trial.start else ""
    seeds = f"{len(trial.seeds)} seed{'' if len(trial.seeds) == 1 else 's'}"
    lines.append(
        f"{at_most}{len(trial.arms)} arms x {seeds} = {runs} runs of {trial.steps} steps{start}, "
        f"{cost.runs} to make: {cost}"
    )
    lines.append(looks.rule(trial.budget, len(trial.arms) - 1))
    return lines


def _changes(arm: Arm) -> str:
    words = {"*": "the script's own times ", "/": "the script's own divided by "}

    def change(key: str, value: Any) -> str:
        is_relative = isinstance(value, str) and trial_child.RELATIVE.fullmatch(value)
        return f"{key} = {words[value[0]]}{value[1:]}" if is_relative else f"{key} = {value}"

    return ", ".join(change(k, v) for k, v in arm.keys.items())


def step_cost(path: Path) -> tuple[float | None, float | None]:
    """Seconds and generated tokens of a step of a run, from its log; None where it does not tell."""
    try:
        log = read_log(path)
    except RecordError:
        return None, None
    seconds, tokens = foreign.time_of(log), foreign.generated_tokens(log)
    last = max((float(s.steps[-1]) for s in log.series.values() if len(s)), default=0.0)
    per_step = [None if f is None or not last else f(last) / last for f in (seconds, tokens)]
    return per_step[0], per_step[1]
