"""A gxpo run directory -> `RunResult`: what it measured on held-out tasks, and what it had spent by then."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, RecordError, did_you_mean
from gxpo.compare.results import Budget, Point, RunResult
from gxpo.training import metrics
from gxpo.training.directory import EVALUATIONS, METRICS, config_of

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


def read_run(path: str | Path, arm: str, seed: int, measure: str = ACCURACY, budget: Budget | None = None) -> RunResult:
    """The result of one run.

    measure  a figure of the evaluations (`eval_accuracy`, `eval_length`, `eval_pass_at_8`...), each a point; or one of
             the steps (`reward_mean`...), whose points are the means of ten parts of the steps, see `windows`
    budget   where the curve is cut if it goes on behind it: `cut`, and `windows` for a figure of the steps. `figures`
             are then of the evaluation next to it

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
        points = windows([(row["step"], row.get(measure)) for row in lines], spent.__getitem__, budget)
    elif lines:
        raise unknown(measure, path, evaluations, lines)
    else:
        points = []
    kept, share = (points, 1.0) if budget is None else cut(points, budget)
    end = kept[-1].step if kept else 0
    before = after = {}
    if len(kept) > 1 and measure == ACCURACY:
        before, after = verdicts_of(path, kept[0].step), verdicts_of(path, points[len(kept) - 1].step)
        after = after if share == 1 else _between(verdicts_of(path, points[len(kept) - 2].step), after, share)
    shown = points[len(kept) - (1 if share >= 0.5 else 2)].step if held_out and kept else end
    last = next((row for row in reversed(known) if row["step"] <= shown), {})
    costed = next((row for row in reversed(lines) if row["step"] <= end), {})
    whole = share < 1 or (bool(kept) and budget is not None and kept[-1].spent(budget.unit) >= budget.amount)
    return RunResult(
        arm,
        seed,
        str(path),
        tuple(kept),
        before,
        after,
        int(costed.get("discarded_rollouts") or 0),
        _figure(costed.get("judge_tokens")),
        {k: float(v) for k, v in last.items() if k.startswith("eval_") and _is_figure(v)},
        "" if whole and len(kept) > 1 else _trouble(points, lines, held_out),
    )


def cut(points: Sequence[Point], budget: Budget) -> tuple[list[Point], float]:
    """The curve up to the budget, and the share of the way to the next of `points` at which its last one stands: 1
    where that is a point itself. Between two points the curve is a straight line.

    Empty where even the first is behind it; as it is where it ends before.
    """
    unit, amount = budget.unit, budget.amount
    kept = [p for p in points if p.spent(unit) <= amount]
    if not kept or len(kept) == len(points) or kept[-1].spent(unit) == amount:
        return kept, 1.0
    a, b = kept[-1], points[len(kept)]
    share = (amount - a.spent(unit)) / (b.spent(unit) - a.spent(unit))
    step, tokens, updates = (round(x + share * (y - x)) for x, y in zip(_counts(a), _counts(b), strict=True))
    seconds = a.seconds + share * (b.seconds - a.seconds)
    return [*kept, Point(step, tokens, updates, seconds, a.value + share * (b.value - a.value))], share


def _counts(point: Point) -> tuple[int, int, int]:
    return point.step, point.tokens, point.updates


def _between(one: Mapping[str, float], other: Mapping[str, float], share: float) -> dict[str, float]:
    """Verdicts on the straight line between two evaluations."""
    return {k: one[k] + share * (other[k] - one[k]) for k in one if k in other}


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


def windows(
    values: Sequence[tuple[int, float | None]], spent: Callable[[int], Spent], budget: Budget | None = None
) -> list[Point]:
    """Points of a figure of training: the means of (at most ten) equal parts of the steps, unknown values left out.

    The first stands where nothing is spent, the last where all is, the others at the last step of their first half.
    Steps that end behind the budget are not counted.
    """
    held = [(s, v) for s, v in values if budget is None or spent(s).point(0.0).spent(budget.unit) <= budget.amount]
    n = len(held)
    parts = min(TENTHS, n)
    out = []
    for i in range(parts):
        part = held[n * i // parts : n * (i + 1) // parts]
        found = [v for v in map(_figure, (v for _, v in part)) if math.isfinite(v)]
        if found:
            step = 0 if i == 0 else part[-1][0] if i == parts - 1 else part[(len(part) - 1) // 2][0]
            out.append(spent(step).point(math.fsum(found) / len(found)))
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
