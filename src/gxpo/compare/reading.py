"""Read the result of a gxpo run directory: the measure at each evaluation, and what had been spent by then."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, RecordError, did_you_mean
from gxpo.compare.results import Budget, Point, RunResult
from gxpo.training import metrics
from gxpo.training.directory import EVALUATIONS, METRICS, config_of

ACCURACY = "eval_accuracy"  # the mean of verdicts, which runs also record by task
CLOCKS = re.compile(r"time|second|memory|^step$|per_sec", re.IGNORECASE)  # in names of what differs between equal runs
TENTHS = 10  # windows of the steps, each a point of a figure of training

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class StepCost:
    """Cost of training from its beginning to the end of a step."""

    step: int = 0
    tokens: int = 0
    updates: int = 0
    seconds: float = 0.0

    def point(self, value: float) -> Point:
        return Point(self.step, self.tokens, self.updates, self.seconds, value)


def read_run(path: str | Path, arm: str, seed: int, measure: str = ACCURACY, budget: Budget | None = None) -> RunResult:
    """Read the result of one run.

    measure  a figure of the evaluations (`eval_accuracy`, `eval_length`, `eval_pass_at_8`...), each a point; or one of
             the steps (`reward_mean`...), whose points are the means of ten parts of the steps, see `windows`
    budget   where the curve is cut if it goes on behind it: `cut`, and `windows` for a figure of the steps. `figures`
             are then of the evaluation next to it

    The last line of a killed run, cut off in the middle, is left out, and so is an evaluation whose step has no line of
    metrics yet, since its cost is not known. `points` is empty if nothing was measured, and `trouble` says so.
    `ConfigError` for an unknown measure, `CheckpointError` if there is no run.
    """
    path = Path(path)
    config_of(path)  # raises if this is no run
    lines, evaluations = metrics.read(path / METRICS), metrics.read(path / EVALUATIONS)
    cost_by_step = costs(path, lines)
    evaluations_with_cost = [row for row in evaluations if row.get("step") in cost_by_step]
    is_held_out = measure in figures_of(evaluations) or (measure.startswith("eval_") and not evaluations)
    # A run without any evaluation is not in error for an `eval_` measure: it may have been killed before its first.
    if is_held_out:
        points = [
            cost_by_step[row["step"]].point(float(row[measure]))
            for row in evaluations_with_cost
            if _is_figure(row.get(measure))
        ]
    elif measure in figures_of(lines):
        points = windows([(row["step"], row.get(measure)) for row in lines], cost_by_step.__getitem__, budget)
    elif lines:
        raise unknown_measure(measure, path, evaluations, lines)
    else:
        points = []
    # The budget may end between two evaluations: then curve and verdicts are taken from the line between them.
    curve, share = (points, 1.0) if budget is None else cut(points, budget)
    end = curve[-1].step if curve else 0
    start_verdicts = end_verdicts = {}
    if len(curve) > 1 and measure == ACCURACY:
        # Verdicts by task only for the accuracy, whose mean they are.
        start_verdicts, end_verdicts = verdicts_of(path, curve[0].step), verdicts_of(path, points[len(curve) - 1].step)
        end_verdicts = (
            end_verdicts
            if share == 1
            else _interpolate(verdicts_of(path, points[len(curve) - 2].step), end_verdicts, share)
        )
    # Other figures are not interpolated (lengths, pass@k): they are those of the nearer evaluation.
    figures_step = points[len(curve) - (1 if share >= 0.5 else 2)].step if is_held_out and curve else end
    figures_row = next((row for row in reversed(evaluations_with_cost) if row["step"] <= figures_step), {})
    end_line = next((row for row in reversed(lines) if row["step"] <= end), {})
    # A cut curve ends at its budget by definition.
    is_complete = share < 1 or (bool(curve) and budget is not None and curve[-1].cost(budget.unit) >= budget.amount)
    return RunResult(
        arm,
        seed,
        str(path),
        tuple(curve),
        start_verdicts,
        end_verdicts,
        int(end_line.get("discarded_rollouts") or 0),
        _figure(end_line.get("judge_tokens")),
        {k: float(v) for k, v in figures_row.items() if k.startswith("eval_") and _is_figure(v)},
        "" if is_complete and len(curve) > 1 else _trouble(points, lines, is_held_out),
        trace_of(lines),
    )


def trace_of(rows: Rows, last: float = math.inf) -> dict[str, list[float]]:
    """Every figure by step up to the step `last`, without clocks and memory; a step without it counts as nan."""
    within = [row for row in rows if row.get("step", 0) <= last]
    names = dict.fromkeys(k for row in within for k, v in row.items() if _is_figure(v) and not CLOCKS.search(k))
    return {name: [_figure(row.get(name)) for row in within] for name in names}


def cut(points: Sequence[Point], budget: Budget) -> tuple[list[Point], float]:
    """Cut a curve at the budget, on the straight line between the two points around it.

    Also returns how far the last point of the result lies on the way between those two, from 0 to 1; 1 if the curve
    ends at one of `points`. The result is empty if even the first point is beyond the budget, and the whole curve if
    all are within.
    """
    unit, amount = budget.unit, budget.amount
    within = [p for p in points if p.cost(unit) <= amount]
    if not within or len(within) == len(points) or within[-1].cost(unit) == amount:
        return within, 1.0
    a, b = within[-1], points[len(within)]
    share = (amount - a.cost(unit)) / (b.cost(unit) - a.cost(unit))
    step, tokens, updates = (round(x + share * (y - x)) for x, y in zip(_counts(a), _counts(b), strict=True))
    seconds = a.seconds + share * (b.seconds - a.seconds)
    return [*within, Point(step, tokens, updates, seconds, a.value + share * (b.value - a.value))], share


def _counts(point: Point) -> tuple[int, int, int]:
    return point.step, point.tokens, point.updates


def _interpolate(first: Mapping[str, float], second: Mapping[str, float], share: float) -> dict[str, float]:
    """Interpolate verdicts between two evaluations, task by task."""
    return {k: first[k] + share * (second[k] - first[k]) for k in first if k in second}


def costs(path: Path, lines: Rows) -> dict[int, StepCost]:
    """Cost of training by the end of each step; step 0 is before training.

    Lines of metrics hold generated tokens since the run began (through every resume), but updates and seconds of their
    own step.
    """
    out = {0: StepCost()}
    updates, seconds = 0, 0.0
    for row in lines:
        try:
            updates += row["optimiser_steps"]
            seconds += row["time_step_s"]
            out[row["step"]] = StepCost(row["step"], row["generated_tokens"], updates, seconds)
        except (KeyError, TypeError) as error:
            raise RecordError(
                f"{path / METRICS}: the line of step {row.get('step')} does not say what it cost ({error}): it is not "
                "of this version of gxpo"
            ) from None
    return out


def windows(
    values: Sequence[tuple[int, float | None]], cost_at: Callable[[int], StepCost], budget: Budget | None = None
) -> list[Point]:
    """Curve of a figure of training: means over at most ten equal parts of the steps, unknown values left out.

    The first point is placed at cost 0, the last at the whole cost, the others at the last step of the first half of
    their part. Steps that end beyond the budget are not counted.
    """
    # Steps beyond the budget would let a longer run average over more training.
    within_budget = [
        (s, v) for s, v in values if budget is None or cost_at(s).point(0.0).cost(budget.unit) <= budget.amount
    ]
    n = len(within_budget)
    parts = min(TENTHS, n)
    out = []
    # The ends are placed at the ends of the curve, so that start and end compare over the whole budget.
    for i in range(parts):
        part = within_budget[n * i // parts : n * (i + 1) // parts]
        # Steps without a value (an empty batch) are left out of their part's mean.
        values_known = [v for v in map(_figure, (v for _, v in part)) if math.isfinite(v)]
        if values_known:
            step = 0 if i == 0 else part[-1][0] if i == parts - 1 else part[(len(part) - 1) // 2][0]
            out.append(cost_at(step).point(math.fsum(values_known) / len(values_known)))
    return out


def verdicts_of(path: str | Path, step: int) -> dict[str, float]:
    """Mean verdict of each held-out task in the evaluation of a step; empty if it was not recorded."""
    file = Path(path) / "evaluations" / f"step-{step:06d}.json"
    if not file.is_file():
        return {}
    try:
        return {str(k): float(v) for k, v in json.loads(file.read_text()).items()}
    except (ValueError, AttributeError, TypeError):
        raise RecordError(f"{file} is not a table of task and verdict: restore the file or remove it") from None


def figures_of(rows: Rows) -> list[str]:
    """Names of the figures that occur in the rows, in order, without clocks, memory and the step."""
    names = dict.fromkeys(k for row in rows for k, v in row.items() if _is_figure(v))
    return [n for n in names if n != "step" and not n.startswith(("time_eval", "memory_"))]


def unknown_measure(measure: str, path: str | Path, evaluations: Rows, lines: Rows) -> ConfigError:
    """Build the error for a measure that no line has."""
    held_out = figures_of(evaluations)
    training = [n for n in figures_of(lines) if n not in held_out]
    evaluation_text = f"evaluations have {', '.join(held_out)}" if held_out else "there are no evaluations"
    hint = did_you_mean(measure, [*held_out, *training]) or ";"
    return ConfigError(f"{path} has no figure {measure!r}{hint} {evaluation_text}; steps have {', '.join(training)}")


def _trouble(points: Sequence[Point], lines: Rows, held_out: bool) -> str:
    if len(points) < 2:
        ending = f"ended after step {lines[-1]['step']}" if lines else "ended before its first step"
        if lines and not held_out:
            return f"{ending}: two steps with the measure are needed"
        evaluations = f"one evaluation alone, of step {points[0].step}" if points else "no evaluation"
        return f"{ending} with {evaluations}: a comparison needs two"
    if held_out and lines[-1]["step"] > points[-1].step:
        return f"ended after step {lines[-1]['step']} without an evaluation; its last is of step {points[-1].step}"
    return ""


def _figure(value: Any) -> float:
    """The value as a float; nan if it is no finite number."""
    return float(value) if _is_figure(value) else math.nan


def _is_figure(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
