"""Pictures of a method with matplotlib: advantage by group composition, gradient weight by ratio."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from gxpo.base.errors import need
from gxpo.explain.effect import GROUP, Effect
from gxpo.explain.surrogate_effect import RATIOS, SurrogateEffect

SIZE = (4.6, 2.8)  # inches
RIGHT, WRONG, BASE = "#1f77b4", "#d62728", "#9a9a9a"
MOST = 8.0  # advantages beyond are drawn at the edge, with their number
LOWEST, HIGHEST = -2.0, 4.0  # weights beyond are drawn at the edge


def effect_figure(effect: Effect, base: Effect, name: str) -> Any:
    """Figure of the advantage by group composition: the method's two lines over the base's, which are dashed.

    Raises MissingExtra without matplotlib (`gxpo[plot]`).
    """
    figure, axes = _axes(f"right answers in the group of {GROUP}")
    for line in (base.right, base.wrong):
        _line(axes, *_known(line), color=BASE, linestyle="--", linewidth=1, label="grpo")
    for line, color, told in ((effect.wrong, WRONG, "a wrong answer"), (effect.right, RIGHT, f"{name}, a right one")):
        places, values = _known(line)
        _line(axes, places, [_held(v, -MOST, MOST) for v in values], color=color, marker="o", markersize=3, label=told)
        for x, value in zip(places, values, strict=True):
            if abs(value) > MOST:
                axes.annotate(number(value), (x, _held(value, -MOST, MOST)), ha="center", fontsize=7)
    return figure


def surrogate_figure(effect: SurrogateEffect, base: SurrogateEffect, name: str) -> Any:
    """Figure of the gradient weight by ratio: the method's two curves over the base's (dashed); raises as
    `effect_figure`."""
    figure, axes = _axes("ratio of the token")
    axes.axvline(1, color="#e4e4e4", linewidth=1)
    for curve in (base.rising, base.falling):
        _line(axes, RATIOS, curve, color=BASE, linestyle="--", linewidth=1, label="grpo")
    for curve, color, told in ((effect.falling, WRONG, "A < 0"), (effect.rising, RIGHT, f"{name}, A > 0")):
        _line(axes, RATIOS, [_held(y, LOWEST, HIGHEST) for y in curve], color=color, label=told)
    return figure


def svg(figure: Any) -> str:
    """The figure as an SVG document; equal figures give equal text."""
    axes = figure.axes[0]
    handles = {told: line for line, told in zip(*axes.get_legend_handles_labels(), strict=True)}
    axes.legend(list(handles.values()), list(handles), fontsize=7, frameon=False)
    out = io.StringIO()
    with need("matplotlib", "plot").rc_context({"svg.hashsalt": "gxpo", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def number(value: float) -> str:
    """Format to three significant digits, and to the unit for larger numbers."""
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{0.0 if abs(value) < 5e-7 else value:.3g}"


def _axes(below: str) -> tuple[Any, Any]:
    figure = need("matplotlib.figure", "plot").Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(below, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color="#e4e4e4")
    axes.axhline(0, color="#333333", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(axes: Any, x: Sequence[float], y: Sequence[float], **style: Any) -> None:
    axes.plot(x, y, **{"linewidth": 1.6, **style})


def _known(values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """(places, values) of those that there are."""
    there = [(float(i), v) for i, v in enumerate(values) if v is not None]
    return [x for x, _ in there], [v for _, v in there]


def _held(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))
