"""`Found`: what one file holds, under the trainer's own keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Row = tuple[float, dict[str, float]]  # step, figures

# Keys that hold the number of the step, the first that is there counts. Order matters: wandb's `_step` counts calls of
# `log`, not steps of the trainer.
STEP_KEYS = (
    "step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "trainer_step",
    "progress/step",
    "global_step/max_steps",  # ms-swift: "5/100"
    "Step",
    "steps",
    "iteration",
    "iter",
    "_step",
)


@dataclass
class Found:
    """What one file holds.

    kind        state, rows, console, table, events, config
    rows        figures by step, in the order of the file
    numbered    whether the steps are the trainer's; False: counted from 1, and `bars` may tell them
    bars        (rows so far, step, length) of progress bars, where rows carry no step
    settings    keys of a configuration, nested ones joined by dots
    hints       names of trainers that the text mentions
    unreadable  lines or rows that could not be read
    torn        whether the last line is incomplete, as in a run that is still going
    """

    kind: str
    rows: list[Row] = field(default_factory=list)
    numbered: bool = True
    bars: list[tuple[int, int, int]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    hints: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unreadable: int = 0
    torn: bool = False


def number(value: Any) -> float | None:
    """A figure: numbers, texts of numbers, and nan for null; None for all else (flags, texts, lists)."""
    kind = type(value)
    if kind is float or kind is int:
        try:
            return float(value)
        except OverflowError:
            return None
    if value is None:
        return float("nan")
    if kind is str and len(value) < 40:
        try:
            return float(value) if "_" not in value else None
        except ValueError:
            return float("nan") if value.strip().lower() in ("null", "none") else None
    return None


def step_of(value: Any) -> float | None:
    """A finite number of a step, from "5/100", too."""
    if type(value) is str and "/" in value:
        value = value.split("/", 1)[0]
    step = number(value)
    return step if step is not None and math.isfinite(step) else None


def figures(row: Mapping[Any, Any], leave: str | None = None) -> dict[str, float]:
    """The figures of a row; flags, texts and nested values are left out, and so is the key `leave`."""
    out = {}
    for key, value in row.items():
        figure = value if type(value) is float else number(value)
        if figure is not None and key != leave:
            out[str(key)] = figure
    return out


def flat(value: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Nested mappings as one, keys joined by dots; what is deeper than 12 is left out."""
    out: dict[str, Any] = {}
    if isinstance(value, Mapping) and depth < 12:
        for key, inner in value.items():
            name = f"{prefix}.{key}" if prefix else str(key)
            if isinstance(inner, Mapping):
                out.update(flat(inner, name, depth + 1))
            else:
                out[name] = inner
    return out
