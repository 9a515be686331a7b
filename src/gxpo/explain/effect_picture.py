"""A method's credit drawn as SVG: what a right and a wrong answer are given, by how many of their group are right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gxpo.explain.effect import GROUP, Effect

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 440, 266, 40, 16, 14, 56  # pixels: the picture and its margins
MOST = 8.0  # what lies beyond is drawn at the edge, with its number
BLUE, RED, GREY, INK = "#1f77b4", "#d62728", "#9a9a9a", "#333333"
STYLE = (
    f"<style>text{{font:11px sans-serif;fill:{INK}}}.grid{{stroke:#e4e4e4}}.zero{{stroke:{INK}}}"
    f".right,.wrong,.base{{fill:none;stroke-width:1.8}}.right{{stroke:{BLUE}}}.wrong{{stroke:{RED}}}"
    f".base{{stroke:{GREY};stroke-width:1.2;stroke-dasharray:4 3}}"
    f"circle.right{{fill:{BLUE};stroke:none}}circle.wrong{{fill:{RED};stroke:none}}</style>"
    '<rect width="100%" height="100%" fill="white"/>'
)


def effect_picture(effect: Effect, base: Effect, name: str) -> str:
    """An SVG document: the method's two lines over the base's, which are dashed."""
    drawn = [_held(x) for row in (effect.right, effect.wrong, base.right, base.wrong) for x in row if x is not None]
    low, high = min(-1, math.floor(min(drawn))), max(1, math.ceil(max(drawn)))

    def x_of(c: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * c / GROUP

    def y_of(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - _held(value)) / (high - low)

    def line(values: Sequence[float | None], kind: str) -> str:
        points = [(x_of(c), y_of(v), v) for c, v in enumerate(values) if v is not None]
        shape = f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)}"/>'
        if kind == "base":
            return shape
        dots = "".join(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y, _ in points)
        beyond = "".join(
            text_at(x, y + (15 if v > 0 else -7), number(v), "middle") for x, y, v in points if abs(v) > MOST
        )
        return shape + dots + beyond

    step = 1 if high - low <= 8 else 2
    ticks = [v for v in range(low, high + 1) if v % step == 0]
    shapes = [
        f'<path class="{"grid" if v else "zero"}" d="M{LEFT},{y_of(v):.1f} H{WIDTH - RIGHT}"/>'
        + text_at(LEFT - 6, y_of(v) + 4, str(v), "end")
        for v in ticks
    ]
    shapes += [text_at(x_of(c), HEIGHT - BOTTOM + 16, str(c), "middle") for c in range(GROUP + 1)]
    shapes += [line(base.right, "base"), line(base.wrong, "base")]
    shapes += [line(effect.wrong, "wrong"), line(effect.right, "right")]
    legend = HEIGHT - 8
    shapes += [
        f'<circle class="right" cx="{LEFT}" cy="{legend - 4}" r="3"/>',
        text_at(LEFT + 7, legend, f"{name}, a right answer"),
        f'<circle class="wrong" cx="{LEFT + 165}" cy="{legend - 4}" r="3"/>',
        text_at(LEFT + 172, legend, "a wrong answer"),
        f'<line class="base" x1="{LEFT + 275}" x2="{LEFT + 297}" y1="{legend - 4}" y2="{legend - 4}"/>',
        text_at(LEFT + 302, legend, "grpo"),
        text_at(WIDTH - RIGHT, HEIGHT - BOTTOM + 30, f"right answers in the group of {GROUP}", "end"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f"{STYLE}{''.join(shapes)}</svg>\n"
    )


def number(value: float) -> str:
    """To three digits, and to the unit where there are more before the point."""
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{0.0 if abs(value) < 5e-7 else value:.3g}"


def _held(value: float) -> float:
    return max(-MOST, min(MOST, value))


def text_at(x: float, y: float, text: str, anchor: str = "start") -> str:
    """A text element."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
