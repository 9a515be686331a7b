"""Pictures of letters, 8 x 8 grey values: Pillow's own face in many sizes, slants and stroke weights."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from gxpo.base.errors import need

LETTERS = "ABCEHLOSTX"  # class 0 is A
SIDE = 8
SCALE = 8  # pixels that are drawn for one, along each side
HEAVIEST = 0.07  # what a stroke of weight 1 has more on each side, as a share of the picture's side


def draw_letters(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw `n` letters, the classes in turn: pixels [n, 8, 8] float32 in [0, 1], classes [n], stroke weights [n] in
    [0, 1).

    Weight and size are uniform; rotation, slant and shift are normal. Equal for equal seeds and versions of Pillow.
    """
    random = np.random.default_rng(seed)
    classes, weights = np.arange(n) % len(LETTERS), random.random(n)
    sizes = random.uniform(0.85, 1.1, n)
    rotations, slants = math.radians(6) * random.standard_normal(n), 0.15 * random.standard_normal(n)
    shifts = 0.06 * random.standard_normal((n, 2))
    rows = zip(classes, weights, sizes, rotations, slants, shifts, strict=True)
    pixels = [picture(LETTERS[c], w, size, r, slant, shift) for c, w, size, r, slant, shift in rows]
    return np.stack(pixels) if n else np.zeros((0, SIDE, SIDE), np.float32), classes, weights


def picture(
    letter: str, weight: float = 0.0, size: float = 1.0, rotation: float = 0.0, slant: float = 0.0,
    shift: tuple[float, float] | np.ndarray = (0.0, 0.0),
) -> np.ndarray:  # fmt: skip
    """Draw one letter, white on black, [8, 8] float32 in [0, 1].

    weight    of the strokes, 0 (the face's own) to 1
    size      of the face, 1: its em is the picture's side
    rotation  radians
    slant     shear, to the right where it is above 0
    shift     to the right and down, as a share of the picture's side
    """
    image: Any = need("PIL.Image", "diffusers")
    artist: Any = need("PIL.ImageDraw", "diffusers")
    side = SIDE * SCALE
    canvas = image.new("L", (side, side))
    artist.Draw(canvas).text(
        (side / 2, side / 2), letter, fill=255, font=_face(round(side * size)), anchor="mm",
        stroke_width=round(weight * HEAVIEST * side), stroke_fill=255,
    )  # fmt: skip
    # Pillow takes the map from a place of the result to one of what was drawn; the centre goes to centre plus shift
    cos, sin = math.cos(rotation), math.sin(rotation)
    back = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1.0, slant], [0.0, 1.0]])
    offset = side / 2 - back @ (side / 2 + side * np.asarray(shift))
    table = (*back[0], offset[0], *back[1], offset[1])
    moved = canvas.transform((side, side), image.Transform.AFFINE, table, image.Resampling.BILINEAR)
    return np.asarray(moved.reduce(SCALE), dtype=np.float32) / 255


@cache
def _face(size: int) -> Any:
    """Pillow's own face in one size; a Pillow without FreeType has it not, and says so."""
    return need("PIL.ImageFont", "diffusers").load_default(size)
