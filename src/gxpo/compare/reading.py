"""A gxpo run directory -> `RunResult`: what it measured on held-out tasks, and what it had spent by then."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.compare.results import Point, RunResult
from gxpo.errors import ConfigError, RecordError, did_you_mean
from gxpo.trainer import metrics
from gxpo.trainer.directory import EVALUATIONS, METRICS, config_of

ACCURACY = "eval_accuracy"  # the mean of verdicts that are kept by task
TENTHS = 10  # windows into which the steps are cut for a figure of training

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Spent:
    """What training took from its beginning to the end of a step."""

    step: int = 0
    tokens: int = 0
    updates: int = 0
    seconds: float = 0.0

    def point(self, value: float) -> Point:
        return Point(self.step, self.tokens, self.updates, self.seconds, value)


def read_run(path: str | Path, arm: str, seed: int, measure: str = ACCURACY) -> RunResult:
    """The result of one run.

    measure  a figure of the evaluations (`eval_accuracy`, `eval_length`, `eval_pass_at_8`...), each a point; or one of
             the steps (`reward_mean`...), whose points are the means of ten parts of the steps, see `windows`

    A last line without an end, of a run that was killed, is left out, and so is an evaluation whose step has no line
    yet: what it cost is not known. `points` is empty where nothing was measured, and `trouble` says so. `ConfigError`
    for a measure that is neither, `CheckpointError` where there is no run.
    """
    path = Path(path)
    config_of(path)
    lines, evaluations = metrics.read(path / METRICS), metrics.read(path / EVALUATIONS)
    spent = costs(path, lines)
    known = [row for row in evaluations if row.get("step") in spent]
    held_out = measure in figures_of(evaluations) or (measure.startswith("eval_") and not evaluations)
    if held_out:
        points = [spent[row["step"]].point(float(row[measure])) for row in known if _is_figure(row.get(measure))]
    elif measure in figures_of(lines):
        points = windows([(row["step"], row.get(measure)) for row in lines], spent)
    elif lines:
        raise unknown(measure, path, evaluations, lines)
    else:
        points = []
    end = points[-1].step if points else 0
    verdicts = [verdicts_of(path, p.step) for p in (points[0], points[-1])] if points and measure == ACCURACY else []
    before, after = verdicts if len(points) > 1 and verdicts else ({}, {})
    last = next((row for row in reversed(known) if row["step"] <= end), {})
    costed = next((row for row in reversed(lines) if row["step"] <= end), {})
    return RunResult(
        arm,
        seed,
        str(path),
        tuple(points),
        before,
        after,
        int(costed.get("discarded_rollouts") or 0),
        _figure(costed.get("judge_tokens")),
        {k: float(v) for k, v in last.items() if k.startswith("eval_") and _is_figure(v)},
        _trouble(points, lines, held_out),
    )


def costs(path: Path, lines: Rows) -> dict[int, Spent]:
    """Step -> what was spent by its end; step 0 is before any.

    The lines count generated tokens since the run began (through every resume), updates and seconds by step.
    """
    out = {0: Spent()}
    updates, seconds = 0, 0.0
    for row in lines:
        try:
            updates += row["optimiser_steps"]
            seconds += row["time_step_s"]
            out[row["step"]] = Spent(row["step"], row["generated_tokens"], updates, seconds)
        except (KeyError, TypeError) as error:
            raise RecordError(
                f"{path / METRICS}: the line of step {row.get('step')} does not say what it cost ({error}): it is not "
                "of this version of gxpo"
            ) from None
    return out


def windows(values: Sequence[tuple[int, float | None]], spent: Mapping[int, Spent]) -> list[Point]:
    """Points of a figure of training: the means of (at most ten) equal parts of the steps, unknown values left out.

    The first stands where nothing is spent, the last where all is, the others at the last step of their first half.
    """
    n = len(values)
    parts = min(TENTHS, n)
    out = []
    for i in range(parts):
        part = values[n * i // parts : n * (i + 1) // parts]
        found = [v for v in map(_figure, (v for _, v in part)) if math.isfinite(v)]
        if found:
            step = 0 if i == 0 else part[-1][0] if i == parts - 1 else part[(len(part) - 1) // 2][0]
            out.append(spent[step].point(math.fsum(found) / len(found)))
    return out


def verdicts_of(path: str | Path, step: int) -> dict[str, float]:
    """Held-out task -> its mean verdict in the evaluation of that step; empty where it was not recorded."""
    file = Path(path) / "evaluations" / f"step-{step:06d}.json"
    if not file.is_file():
        return {}
    try:
        return {str(k): float(v) for k, v in json.loads(file.read_text()).items()}
    except (ValueError, AttributeError, TypeError):
        raise RecordError(f"{file} is not a table of task and verdict: restore the file or remove it") from None


def figures_of(rows: Rows) -> list[str]:
    """Names of the figures in some row, in order; clocks, memory and the step are none."""
    names = dict.fromkeys(k for row in rows for k, v in row.items() if _is_figure(v))
    return [n for n in names if n != "step" and not n.startswith(("time_eval", "memory_"))]


def unknown(measure: str, path: str | Path, evaluations: Rows, lines: Rows) -> ConfigError:
    """The error for a measure that no line has."""
    held_out = figures_of(evaluations)
    training = [n for n in figures_of(lines) if n not in held_out]
    listed = f"evaluations have {', '.join(held_out)}" if held_out else "there are no evaluations"
    hint = did_you_mean(measure, [*held_out, *training]) or ";"
    return ConfigError(f"{path} has no figure {measure!r}{hint} {listed}; steps have {', '.join(training)}")


def _trouble(points: Sequence[Point], lines: Rows, held_out: bool) -> str:
    if len(points) < 2:
        done = f"ended after step {lines[-1]['step']}" if lines else "ended before its first step"
        if lines and not held_out:
            return f"{done}: two steps with the measure are needed"
        found = f"one evaluation alone, of step {points[0].step}" if points else "no evaluation"
        return f"{done} with {found}: a comparison needs two"
    if held_out and lines[-1]["step"] > points[-1].step:
        return f"ended after step {lines[-1]['step']} without an evaluation; its last is of step {points[-1].step}"
    return ""


def _figure(value: Any) -> float:
    """A number; nan for what is none."""
    return float(value) if _is_figure(value) else math.nan


def _is_figure(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
