"""`forest_plot`: estimates with their intervals, one below the other, against 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gxpo.base.page.chart import CHART_STYLE, LETTER, _label, _ticks
from gxpo.base.page.text import Html, text

SIDE, TOP, ROW, BOTTOM = 16, 48, 38, 52
STYLE = (
    ".gx .n{stroke:#7b8494;fill:#7b8494}.gx .z{stroke:#5b6475;stroke-width:1.2}.gx .i{stroke-width:2.2}"
    ".gx .h{fill:#fdfdfc;stroke-width:2}.gx .k{fill:#1d2330;font-size:12px}"
    ".gx .o{paint-order:stroke;stroke:#fdfdfc;stroke-width:4px;stroke-linejoin:round}"  # legible over the grid
    "@media(prefers-color-scheme:dark){.gx .n{stroke:#98a1b0;fill:#98a1b0}.gx .z{stroke:#a3acbb}.gx .h{fill:#141619}"
    ".gx .k{fill:#e6e9ef}.gx .o{stroke:#141619}}"
)
COLOURS = {"above": "s0 f0", "below": "s1 f1", "neither": "n"}


@dataclass(frozen=True)
class Interval:
    """A row of the plot.

    figures  its numbers as a text, to the right of the label
    side     of 0 it is told to be on; `neither` is drawn hollow and grey
    dashed   drawn with a broken line, such as a control
    """

    label: str
    mean: float
    low: float
    high: float
    figures: str = ""
    side: Literal["above", "below", "neither"] = "neither"
    dashed: bool = False


def forest_plot(
    rows: Sequence[Interval], *, title: str, y_label: str, below: str = "", above: str = "", width: int = 460
) -> Html:
    """One `<svg>` element, complete as a file of its own: a row for each interval, label and figures over its line.

    below, above  what it means to lie left and right of 0, under the axis

    A row whose mean is not finite has no mark; one whose ends are not has no line.
    """
    height = TOP + ROW * len(rows) + BOTTOM
    bottom, right = height - BOTTOM, width - SIDE
    # the axis always holds 0, against which the intervals are read
    ticks = _ticks([0.0, *(v for r in rows for v in (r.mean, r.low, r.high) if math.isfinite(v))])

    def x(value: float) -> float:
        return round(SIDE + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (right - SIDE), 1)

    out = [
        f'<svg class="gx" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{text(title)}"><style>{CHART_STYLE}{STYLE}</style>',
        f'<text class="t" x="{SIDE}" y="17">{text(title)}</text><text x="{SIDE}" y="33">{text(y_label)}</text>',
    ]
    # the zero line is drawn over the grid: whether an interval touches it is what the plot is read for
    for tick in ticks:
        out.append(f'<line class="g" x1="{x(tick)}" x2="{x(tick)}" y1="{TOP - 4}" y2="{bottom}"/>')
        out.append(f'<text x="{x(tick)}" y="{bottom + 16}" text-anchor="middle">{_label(tick, ticks)}</text>')
    out.append(f'<line class="z" x1="{x(0.0)}" x2="{x(0.0)}" y1="{TOP - 4}" y2="{bottom}"/>')
    out.append(f'<line class="a" x1="{SIDE}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    out.append(f'<text x="{SIDE}" y="{bottom + 34}">{text(below)}</text>')
    out.append(f'<text x="{right}" y="{bottom + 34}" text-anchor="end">{text(above)}</text>')
    for i, row in enumerate(rows):
        top = TOP + ROW * i
        out += _row(row, top, right, x)
    return Html("".join(out) + "</svg>")


def _row(row: Interval, top: int, right: int, x: Callable[[float], float]) -> list[str]:
    colour = COLOURS[row.side]
    room = int((right - SIDE - LETTER * len(row.figures)) / LETTER) - 2
    out = [
        f"<g><title>{text(f'{row.label}: {row.figures}')}</title>",
        f'<text class="k o" x="{SIDE}" y="{top + 13}">{text(cut(row.label, room))}</text>',
        f'<text class="o" x="{right}" y="{top + 13}" text-anchor="end">{text(row.figures)}</text>',
    ]
    middle = top + 25
    if math.isfinite(row.low) and math.isfinite(row.high):
        dash = " d" if row.dashed else ""
        out.append(
            f'<line class="l i{dash} {colour}" x1="{x(row.low)}" x2="{x(row.high)}" y1="{middle}" y2="{middle}"/>'
        )
        out += [
            f'<line class="l i {colour}" x1="{x(end)}" x2="{x(end)}" y1="{middle - 4}" y2="{middle + 4}"/>'
            for end in (row.low, row.high)
        ]
    if math.isfinite(row.mean):
        # an estimate that favours neither side is hollow, so that it is told without colours too
        hollow = " h" if row.side == "neither" else ""
        out.append(
            f'<rect class="{colour}{hollow}" x="{x(row.mean) - 4:.1f}" y="{middle - 4}" width="8" height="8" rx="1"/>'
        )
    return [*out, "</g>"]


def cut(label: str, room: int) -> str:
    """The label in at most so many letters, but no fewer than 9, its middle left out.

    >>> cut("grpo:credit.scale=none", 11)
    'grpo:\u2026=none'
    """
    if len(label) <= max(room, 9):
        return label
    half = (max(room, 9) - 1) // 2
    return f"{label[:half]}\u2026{label[-half:]}"
