"""Plots of `gxpo bench` results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, need
from gxpo.bench.results import Results, Row, sides

UNIQUE = "unique/"  # rows of `update` that differ in their number of unique tokens
PICTURES = (".svg", ".png", ".pdf")


def check(path: Path) -> None:
    """Raise `ConfigError` for an unknown kind of picture, `MissingExtra` without matplotlib."""
    if path.suffix not in PICTURES:
        raise ConfigError(f"--plot {path}: its name must end in {', '.join(PICTURES)}")
    need("matplotlib", "plot")


def plot(results: Results, path: Path, reads: str) -> None:
    """Plot the ratios with their spread; of rows `unique/...` the seconds against the unique tokens."""
    check(path)
    figure_class = need("matplotlib.figure", "plot").Figure
    need("matplotlib", "plot").rcParams["svg.hashsalt"] = "gxpo"  # the same picture for the same rows
    rows = [row for row in results.rows if row.get("ratio") is not None]
    unique_rows = [row for row in rows if _unique_point(row) is not None]
    if not rows:
        raise ConfigError("there are no rows to draw")
    panels = 1 + (len(unique_rows) > 1)
    draw = _differences if any("difference" in row for row in rows) else _bars
    figure = figure_class(figsize=(9, (0.32 * len(rows) + 1.6) + 4.2 * (panels - 1)), layout="constrained")
    axes = figure.subplots(panels, 1, squeeze=False, height_ratios=[0.32 * len(rows) + 1.6, 4.2][:panels])[:, 0]
    draw(axes[0], rows, reads)
    m = results.machine
    axes[0].set_title(f"{results.suite}: {m.get('processor')}, threads: {m.get('threads')}", fontsize=10)
    if panels == 2:
        _line(axes[1], unique_rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _bars(axis: Any, rows: Sequence[Row], reads: str) -> None:
    ratios = [row["ratio"] for row in rows]
    spreads = [row.get("spread") or [row["ratio"]] * 2 for row in rows]
    error = [
        [max(0.0, r - low) for r, (low, _) in zip(ratios, spreads, strict=True)],
        # An error bar has no negative length, though a median may lie outside of a spread of two rounds.
        [max(0.0, high - r) for r, (_, high) in zip(ratios, spreads, strict=True)],
    ]
    place = list(range(len(rows)))
    colours = ["#2a6f97" if r >= 1 else "#bc6c25" for r in ratios]
    axis.barh(place, ratios, xerr=error, color=colours, ecolor="#333333", capsize=2)
    _names(axis, rows)
    axis.axvline(1.0, color="#333333", linewidth=0.8)
    for y, ratio, (_, high) in zip(place, ratios, spreads, strict=True):
        axis.annotate(
            f"{ratio:.2f}", (max(ratio, high), y), (4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axis.margins(x=0.1)
    axis.set_xlabel(reads)


def _differences(axis: Any, rows: Sequence[Row], reads: str) -> None:
    """Quantities that must be small, and their bounds."""
    for name, key, mark in (("gradient, parameters: relative", "difference", "o"), ("loss", "loss_difference", "x")):
        points = [(row[key], y) for y, row in enumerate(rows) if row.get(key)]
        if points:
            axis.plot([x for x, _ in points], [y for _, y in points], mark, color="#2a6f97", label=name)
    for tolerance in {row["tolerance"] for row in rows if row.get("tolerance")}:
        axis.axvline(tolerance, color="#bc6c25", linewidth=1, label="must be below")
    axis.set_xscale("log")
    _names(axis, rows)
    axis.set_xlabel("difference")
    axis.legend()


def _names(axis: Any, rows: Sequence[Row]) -> None:
    """The rows from top to bottom."""
    axis.set_yticks(list(range(len(rows))), [row["name"] + ("*" if row.get("busy") else "") for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)


def _unique_point(row: Row) -> tuple[float, float] | None:
    """(unique tokens, seconds of gxpo's side) of a row with a given number of unique tokens."""
    name, row_sides = row["name"].removeprefix("update/"), sides(row)
    tokens = row.get("unique_tokens")
    return (
        (float(tokens), float(row_sides[0][1]["seconds"])) if name.startswith(UNIQUE) and tokens and row_sides else None
    )


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Least-squares line: (seconds at 0, seconds per token, r^2)."""
    import numpy as np

    x, y = np.array(points, dtype=np.float64).T
    slope, start = np.polyfit(x, y, 1)
    residual = ((y - start - slope * x) ** 2).sum()
    return float(start), float(slope), float(1 - residual / ((y - y.mean()) ** 2).sum())


def _line(axis: Any, rows: Sequence[Row]) -> None:
    points = sorted(p for p in map(_unique_point, rows) if p is not None)
    start, slope, r2 = fit_line(points)
    axis.plot([x for x, _ in points], [y for _, y in points], "o", color="#2a6f97")
    ends = [0.0, points[-1][0]]
    label = f"{start * 1e3:.0f} ms + {slope * 1e6:.1f} us per token, r2 = {r2:.4f}"
    axis.plot(ends, [start + slope * x for x in ends], "-", color="#bc6c25", linewidth=1, label=label)
    axis.set_xlabel("unique tokens of a step")
    axis.set_ylabel("seconds of a step")
    axis.set_ylim(bottom=0)
    axis.legend()
