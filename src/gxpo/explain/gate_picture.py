"""A method's gate drawn as SVG: the weight on a token's gradient against its ratio, for credit above and below 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gxpo.explain.effect_picture import BOTTOM, HEIGHT, LEFT, RIGHT, STYLE, TOP, WIDTH, text_at
from gxpo.explain.gate_effect import MOST, RATIOS, GateEffect

LOWEST, HIGHEST = -2.0, 4.0  # what lies beyond is drawn at the edge


def gate_picture(effect: GateEffect, base: GateEffect, name: str) -> str:
    """An SVG document: the method's two lines over the base's, which are dashed."""
    drawn = [_held(y) for curve in (effect.rising, effect.falling, base.rising, base.falling) for y in curve]
    low, high = min(0, math.floor(min(drawn) + 1e-9)), max(1, math.ceil(max(drawn) - 1e-9))

    def x_of(ratio: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ratio / MOST

    def y_of(weight: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - _held(weight)) / (high - low)

    def line(curve: Sequence[float], kind: str) -> str:
        points = [(x_of(r), y_of(y)) for r, y in zip(RATIOS, curve, strict=True)]
        return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in _bends(points))}"/>'

    shapes = [
        f'<path class="{"grid" if v else "zero"}" d="M{LEFT},{y_of(v):.1f} H{WIDTH - RIGHT}"/>'
        + text_at(LEFT - 6, y_of(v) + 4, str(v), "end")
        for v in range(low, high + 1)
    ]
    shapes += [text_at(x_of(r), HEIGHT - BOTTOM + 16, str(r), "middle") for r in range(int(MOST) + 1)]
    shapes += [f'<path class="grid" d="M{x_of(1):.1f},{TOP} V{HEIGHT - BOTTOM}"/>']
    shapes += [line(base.rising, "base"), line(base.falling, "base")]
    shapes += [line(effect.falling, "wrong"), line(effect.rising, "right")]
    legend = HEIGHT - 8
    shapes += [
        f'<circle class="right" cx="{LEFT}" cy="{legend - 4}" r="3"/>',
        text_at(LEFT + 7, legend, f"{name}, credit above 0"),
        f'<circle class="wrong" cx="{LEFT + 165}" cy="{legend - 4}" r="3"/>',
        text_at(LEFT + 172, legend, "below 0"),
        f'<line class="base" x1="{LEFT + 275}" x2="{LEFT + 297}" y1="{legend - 4}" y2="{legend - 4}"/>',
        text_at(LEFT + 302, legend, "grpo"),
        text_at(WIDTH - RIGHT, HEIGHT - BOTTOM + 30, "ratio of the token", "end"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f"{STYLE}{''.join(shapes)}</svg>\n"
    )


def _held(weight: float) -> float:
    return max(LOWEST, min(HIGHEST, weight))


def _bends(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points without those that lie on the straight line from the last one kept to the next."""
    kept = [points[0]]
    for here, after in pairwise(points[1:]):
        (x, y), (u, v), (s, t) = kept[-1], here, after
        if abs((v - y) * (s - x) - (t - y) * (u - x)) > 0.05 * (s - x):
            kept.append(here)
    return [*kept, points[-1]]
