"""Logs written by hand for the tests of the checks: series as formulas of the step, rollouts as rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gxpo.doctor import Rollouts, RunLog, Series, diagnose

N = 60
WAVE = np.array([0.0, 1.0, -0.6, 0.4, -1.0, 0.7, -0.3, -0.8, 0.9, 0.1, -0.4])  # noise without a generator; mean 0


def noise(size: float, n: int = N, turn: int = 0) -> Any:
    """[n] a fixed irregular sequence between -size and size; `turn` begins it elsewhere."""
    return size * np.roll(np.resize(WAVE * (1 if turn % 2 else -1), n), turn)


def rise(low: float, high: float, n: int = N) -> Any:
    """[n] a straight line."""
    return np.linspace(low, high, n)


def log(source: str = "trl", config: Mapping[str, Any] | None = None, rows: Any = None, **figures: Any) -> RunLog:
    """A run's log; a name's `__` stands for a slash. Scalars are constant. Evaluations are at every tenth step."""
    run = RunLog(source, ["made by hand"], {}, rows, dict(config or {}))
    for name, values in figures.items():
        key = name.replace("__", "/")
        column = np.asarray(values, dtype=float)
        if column.ndim == 0:
            column = np.full(N, float(column))
        steps = np.arange(1, len(column) + 1, dtype=float) * (10 if key.startswith("eval/") else 1)
        run.series[key] = Series(steps, column, key)
    return run


def healthy(*overs: Mapping[str, Any], **over: Any) -> dict[str, Any]:
    """Figures of a run that gains and has nothing wrong; `overs` and `over` replace some (None: left out)."""
    figures: dict[str, Any] = {
        "reward": rise(0.3, 0.7) + noise(0.03),
        "reward_std": rise(0.45, 0.4),
        "zero_signal": np.clip(rise(0.1, 0.3) + noise(0.05, turn=3), 0, 1),
        "grad_norm": 0.5 + noise(0.1, turn=1),
        "loss": noise(0.01),
        "lr": 1e-6,
        "entropy": rise(0.6, 0.3) + noise(0.005, turn=2),
        "length": 100 + noise(3),
        "length_max": 180 + noise(9, turn=4),
        "length_min": 40 + noise(4, turn=5),
        "truncated": 0.01,
    }
    for one in (*overs, over):
        figures |= one
    return {k: v for k, v in figures.items() if v is not None}


def rollouts(
    rows: Sequence[Mapping[str, Any]],
    components: Callable[[Mapping[str, Any]], dict[str, float]] = lambda row: {},
    grouped_by: str = "recorded",
) -> Rollouts:
    """Rollouts from rows with `group`, `prompt`, `completion`, `score` and what else is known of them."""
    n = len(rows)

    def column(name: str, unknown: float = np.nan) -> Any:
        return np.array([float(row.get(name, unknown)) for row in rows])

    # components are computed from the row, as a reward function would
    parts = [components(row) for row in rows]
    return Rollouts(
        np.array([int(row.get("step", 1)) for row in rows]),
        np.array([int(row["group"]) for row in rows]),
        [str(row.get("prompt", f"prompt {row['group']}")) for row in rows],
        [str(row["completion"]) for row in rows],
        column("score"),
        {name: np.array([p[name] for p in parts]) for name in parts[0]},
        column("advantage"),
        column("tokens"),
        column("truncated"),
        column("success"),
        [row.get("reference") for row in rows],
        np.array([bool(row.get("held_out", False)) for row in rows]),
        column("temperature"),
        [row.get("observation", "") for row in rows],
        [f"rows:{i}" for i in range(n)],
        n,
        grouped_by,
        np.array([bool(row.get("compared", True)) for row in rows]),
    )


def groups(number: int, size: int, row: Callable[[int, int], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `number` groups of `size`: row(group, member)."""
    return [{"group": g, "step": 1 + g // 4, **row(g, m)} for g in range(number) for m in range(size)]


FLAT = {"reward": 0.4 + noise(0.03), "entropy": 0.5 + noise(0.004, turn=2), "length": 100 + noise(3)}
SILENT = {"zero_signal": 1.0, "reward_std": 0.0, "grad_norm": 0.0}
WORDS = ["red", "blue", "green", "black", "white", "brown", "pink", "grey"]


def scored_rows(score: Any, **more: Any) -> Any:
    """Ten groups of four different texts, scored by score(group, member)."""
    return rollouts(groups(10, 4, lambda g, m: {"completion": f"{WORDS[m]} {g}", "score": score(g, m), **more}))


def answers(completion: Any, score: Any, reference: Any = lambda g: 10 + g) -> Any:
    """Ten groups of four: the answer completion(group, member), its score, and the reference beside it."""
    return rollouts(
        groups(
            10,
            4,
            lambda g, m: {
                "completion": f"the answer is {completion(g, m)}",
                "score": score(g, m),
                "reference": str(reference(g)),
                "prompt": f"question {g}",
            },
        )
    )


def collapse(at: int, low: float = 0.0) -> Any:
    """0.5 with noise until step `at`, then `low`."""
    values = 0.5 + noise(0.03)
    values[at:] = low
    return values


def check_first_finding(run: RunLog, name: str) -> None:
    """Assert that the first finding of a run is the sickness, alone or among alternatives, with evidence and remedy."""
    findings = diagnose(run).findings
    assert findings, "nothing was found"
    assert name in findings[0].ids
    assert len(findings[0].ids) <= 3
    assert findings[0].evidence and findings[0].remedy
