"""`svg_chart`: lines over steps with bands, a legend and round ticks, as one `<svg>`, complete as a file of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

from gxpo.base.page.text import Html

Point = tuple[float, float]

LIGHT = ("#1f6fd1", "#b8510a", "#14805a", "#9a3f99", "#7d6300", "#bd3350")
DARK = ("#6aa9f7", "#f2995c", "#4cc496", "#d592e4", "#d6b84e", "#f28394")
CHART_STYLE = (
    ".gx text{font-family:system-ui,sans-serif;font-size:11px;fill:#5b6475}"
    ".gx .t{font-size:13px;font-weight:600;fill:#1d2330}"
    ".gx .g{stroke:#8a93a3;stroke-opacity:.25}.gx .a{stroke:#8a93a3}"
    ".gx .l{fill:none;stroke-width:1.8;stroke-linejoin:round}.gx .d{stroke-dasharray:5 4}.gx .b{fill-opacity:.16}"
    + "".join(f".gx .s{i}{{stroke:{c}}}.gx .f{i}{{fill:{c}}}" for i, c in enumerate(LIGHT))
    + "@media(prefers-color-scheme:dark){.gx text{fill:#a3acbb}.gx .t{fill:#e6e9ef}"
    + "".join(f".gx .s{i}{{stroke:{c}}}.gx .f{i}{{fill:{c}}}" for i, c in enumerate(DARK))
    + "}"
)
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 44, 36
MAX_MARKERS = 60  # a series of at most so many points has a dot, with its value as a tooltip, at each
MAX_POINTS = 800  # points of a longer series are thinned out to about as many
LETTER = 6.2  # widest usual letter of the legend, pixels


def svg_chart(
    series: Mapping[str, Sequence[Point]],
    *,
    title: str,
    y_label: str,
    x_label: str = "step",
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
    dashed: Collection[str] = (),
    y_range: tuple[float, float] | None = None,
    width: int = 460,
    height: int = 260,
) -> Html:
    """One `<svg>` element, complete as a file of its own.

    series   legend text -> (x, y) in the order of x; a y that is not finite leaves a gap
    bands    legend text of a series -> (x, low, high), drawn behind it in its colour
    dashed   the series drawn with a broken line, such as a control
    y_range  the least range of the vertical axis; without it the data's

    A legend is drawn where there is more than one series. Empty series give empty axes.
    """
    # both axes enclose bands and lines alike; points that are not finite have no place and leave gaps
    bands = bands or {}
    finite = [(x, y) for points in series.values() for x, y in points if math.isfinite(x) and math.isfinite(y)]
    spans = [(x, y) for band in bands.values() for x, low, high in band for y in (low, high) if math.isfinite(y)]
    x_ticks = _ticks([x for x, _ in finite + spans], integers=True)
    y_ticks = _ticks([y for _, y in finite + spans] + list(y_range or ()))
    legend, rows = _legend(list(series), dashed, width) if len(series) > 1 else ("", 0)
    top = TOP + 16 * rows
    right, bottom = width - RIGHT, height + 16 * rows - BOTTOM

    def place(x: float, y: float) -> str:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return f"{LEFT + across * (right - LEFT):.1f},{bottom - up * (bottom - top):.1f}"

    out = [
        f'<svg class="gx" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 16 * rows}" role="img" '
        f'aria-label="{escape(title)}"><style>{CHART_STYLE}</style>',
        f'<text class="t" x="{LEFT}" y="17">{escape(title)}</text><text x="{LEFT}" y="33">{escape(y_label)}</text>',
        legend,
    ]
    for tick in y_ticks:
        y = place(x_ticks[0], tick).split(",")[1]
        out.append(f'<line class="g" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{_label(tick, y_ticks)}</text>')
    for tick in x_ticks:
        x = place(tick, y_ticks[0]).split(",")[0]
        out.append(f'<line class="a" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>')
        out.append(f'<text x="{x}" y="{bottom + 16}" text-anchor="middle">{_label(tick, x_ticks)}</text>')
    out.append(f'<line class="a" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    middle = (LEFT + right) / 2
    out.append(f'<text x="{middle:.0f}" y="{bottom + 31}" text-anchor="middle">{escape(x_label)}</text>')
    # all bands before all lines, so that no band covers another series' line
    for i, name in enumerate(series):
        for run in _runs(bands.get(name, ())):
            edge = [place(x, high) for x, _, high in run] + [place(x, low) for x, low, _ in reversed(run)]
            out.append(f'<polygon class="b f{i % len(LIGHT)}" points="{" ".join(edge)}"/>')
    for i, (name, points) in enumerate(series.items()):
        colour = i % len(LIGHT)
        for run in _runs(_thin(points)):
            line = " ".join(place(x, y) for x, y in run)
            out.append(f'<polyline class="l s{colour}{" d" if name in dashed else ""}" points="{line}"/>')
        # a point between two gaps is on no line: it is seen by its dot alone, however long the series
        isolated_points = {run[0] for run in _runs(points) if len(run) == 1}
        marks = [
            p for p in points if all(map(math.isfinite, p)) and (len(points) <= MAX_MARKERS or p in isolated_points)
        ]
        for point in marks:
            cx, cy = place(*point).split(",")
            tip = escape(f"{name}, {x_label} {point[0]:g}: {point[1]:.4g}")
            out.append(f'<circle class="f{colour}" cx="{cx}" cy="{cy}" r="2.4"><title>{tip}</title></circle>')
    if not finite:
        out.append(f'<text x="{middle:.0f}" y="{(top + bottom) / 2:.0f}" text-anchor="middle">no values yet</text>')
    return Html("".join(out) + "</svg>")


def _legend(names: Sequence[str], dashed: Collection[str], width: int) -> tuple[str, int]:
    """The legend's marks and how many rows of 16 pixels they take."""
    out, x, row = [], float(LEFT), 1
    for i, name in enumerate(names):
        size = 30 + LETTER * len(name)
        # a legend that is too wide goes on in the next row, never past the edge
        if x > LEFT and x + size > width - RIGHT:
            x, row = float(LEFT), row + 1
        y = 33 + 16 * row
        dash = " d" if name in dashed else ""
        out.append(
            f'<line class="l s{i % len(LIGHT)}{dash}" x1="{x:.0f}" x2="{x + 16:.0f}" y1="{y - 4}" y2="{y - 4}"/>'
        )
        out.append(f'<text x="{x + 20:.0f}" y="{y}">{escape(name)}</text>')
        x += size
    return "".join(out), row


def _runs(points: Iterable[tuple[float, ...]]) -> list[list[tuple[float, ...]]]:
    """The stretches between points that are not finite."""
    out: list[list[tuple[float, ...]]] = [[]]
    for point in points:
        if all(map(math.isfinite, point)):
            out[-1].append(point)
        elif out[-1]:
            out.append([])
    return [run for run in out if run]


def _thin(points: Sequence[Point]) -> list[Point]:
    """Lowest and highest of each stretch of neighbours, in order: fewer points, the same outline."""
    if len(points) <= MAX_POINTS:
        return list(points)
    # two points for each stretch, the lowest and the highest: a peak must not vanish by thinning
    size = math.ceil(2 * len(points) / MAX_POINTS)
    out: list[Point] = []
    for begin in range(0, len(points), size):
        part = [p for p in points[begin : begin + size] if math.isfinite(p[1])]
        if len(part) < len(points[begin : begin + size]):
            out.append((points[begin][0], math.nan))
        out += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}) if part else []
    return out


def _ticks(values: Sequence[float], *, integers: bool = False) -> list[float]:
    """Two to seven round numbers whose first and last enclose the values."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    # equal values have no range to divide: a margin makes one
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a single value
        margin = max(abs(low) * 0.1, 1.0 if integers or not low else 0.0)
        low, high = (low, low + margin) if integers else (low - margin, high + margin)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    # round steps (1, 2, 5) of which at most seven fit
    unit = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    # steps of training have no fractions
    unit = max(unit, 1.0) if integers else unit
    first, last = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return [i * unit for i in range(first, max(last, first + 1) + 1)]


def _label(tick: float, ticks: Sequence[float]) -> str:
    unit = ticks[1] - ticks[0]
    largest = max(abs(ticks[0]), abs(ticks[-1]))
    if largest >= 1e5 or unit < 1e-4:
        return f"{tick:.3g}"
    return f"{tick:.{max(0, -math.floor(math.log10(unit) + 1e-9))}f}"
