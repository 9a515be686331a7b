"""Measured effects of methods in our studies: `measurements.csv`, which `scripts/results.py` makes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gxpo.doctor import evidence
from gxpo.doctor.evidence import format_signed

PATH = Path(__file__).with_name("measurements.csv")
COLUMNS: tuple[str, ...] = ("method", "keys", "setting", "model", "difference", "low", "high", "seeds", "against")
NOT_MEASURED = "not measured"
LIMITS = "held-out accuracy, small policies on small tasks: docs/results.md"


@cache
def _rows() -> tuple[dict[str, str], ...]:
    with PATH.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def _is_small(row: dict[str, str]) -> bool:
    """True for one of gxpo's own models of a million parameters."""
    return row["model"].startswith("tiny")


def effects(method: str, sets: Sequence[str] = ()) -> list[str]:
    """List what our studies measured of a method, language models first: a line for each setting or sickness.

    Empty where it was not measured.

    sets  keys that the method is used with: without them, those measured beside a method are named in the line

    >>> next(line for line in effects("sfpo") if line.endswith("10 seeds, against grpo"))
    '+.08 (95 % +.05 to +.12) on sums, 10 seeds, against grpo'
    """
    rows = [row for row in _rows() if row["method"] == method and set(sets) <= set(row["keys"].split())]
    # runs that two studies share are one measurement
    row_by_runs = {(row["setting"], row["low"], row["high"], row["seeds"]): row for row in reversed(rows)}
    rows = [row for row in rows if row in row_by_runs.values()]
    rows.sort(key=_is_small)  # language models first
    lines = []
    for row in rows:
        difference, low, high = (format_signed(float(row[k])) for k in ("difference", "low", "high"))
        further_keys = [key for key in row["keys"].split() if key not in sets]
        keys_text = f" with {further_keys[0]}{' and more' if further_keys[1:] else ''}" if further_keys else ""
        model_text = "" if _is_small(row) else f" of {row['model']}"
        lines.append(
            f"{difference} (95 % {low} to {high}) on {row['setting']}{model_text}{keys_text}, {row['seeds']} seeds, "
            f"against {row['against']}"
        )
    keys = {"method": method, **dict(key.split("=", 1) for key in sets)}
    lines += [
        f"{m.figures}, on runs with {m.sickness}" for m in evidence.read(fewest=1) if evidence.is_measured_as(m, keys)
    ]
    return list(dict.fromkeys(lines))


def effects_text(method: str) -> str:
    """Join the measured effects of a method in one line, or say that there is none."""
    return "; ".join(effects(method)) or NOT_MEASURED
