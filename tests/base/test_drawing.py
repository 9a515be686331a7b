"""Small pictures, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest

from gxpo.base.drawing import (
    BLACK,
    GLYPHS,
    WHITE,
    canvas,
    cropped,
    fill,
    frame,
    noisy,
    scaled,
    text_size,
    write,
    write_in,
)


def lit(pixels) -> list[str]:
    """Rows of `#` where a pixel is white and `.` where it is black."""
    assert set(np.unique(pixels)) <= {0, 255} and (pixels == pixels[:, :, :1]).all()
    return ["".join("#" if x else "." for x in row) for row in pixels[:, :, 0]]


def test_text():
    pixels = canvas(9, 7, BLACK)
    write(pixels, "24", 1, 1, WHITE)
    assert lit(pixels) == [
        ".........",
        ".###.#.#.",
        "...#.#.#.",
        ".###.###.",
        ".#.....#.",
        ".###...#.",
        ".........",
    ]
    with pytest.raises(KeyError):
        write(pixels, "a", 0, 0, WHITE)


def test_text_in_the_middle_and_twice_as_large():
    pixels = canvas(10, 12, BLACK)
    write_in(pixels, "1", (0, 0, 10, 12), WHITE, scale=2)
    rows = lit(pixels)
    assert text_size("1", 2) == (6, 10)
    assert rows[0] == rows[-1] == "." * 10 and rows[1] == rows[2] == "....##...." and rows[9] == "..######.."


def test_characters_differ():
    assert len(set(GLYPHS.values())) == len(GLYPHS)
    assert all(len(rows) == 5 and set(rows) <= set("01234567") for rows in GLYPHS.values())


def test_rectangles_are_cut_at_the_edge():
    pixels = canvas(4, 3, BLACK)
    fill(pixels, (-1, -1, 2, 2), WHITE)
    fill(pixels, (3, 2, 9, 9), WHITE)
    fill(pixels, (-5, -5, 2, 2), WHITE)
    assert lit(pixels) == ["#...", "....", "...#"]
    pixels = canvas(4, 3, BLACK)
    frame(pixels, (0, 0, 4, 3), WHITE)
    assert lit(pixels) == ["####", "#..#", "####"]


def test_nearest_neighbour():
    line = np.arange(8, dtype=np.uint8).reshape(1, 8, 1).repeat(3, 2)
    assert scaled(line, 2, 1)[0, :, 0].tolist() == [2, 6]  # middles at 2 and 6
    assert scaled(line, 16, 3)[2, :, 1].tolist() == [x // 2 for x in range(16)]
    # 3 of 8: middles at 4/3, 4 and 20/3
    assert scaled(line, 3, 1)[0, :, 0].tolist() == [1, 4, 6]
    assert cropped(line, (2, 0, 3, 1))[0, :, 0].tolist() == [2, 3, 4]


def test_noise_stays_within_its_bounds():
    dark, bright = (noisy(canvas(50, 50, c), np.random.default_rng(0), 5) for c in ((3, 3, 3), (252, 252, 252)))
    assert (dark.min(), dark.max()) == (0, 8) and (bright.min(), bright.max()) == (247, 255)
    assert (noisy(canvas(2, 2, WHITE), np.random.default_rng(0), 0) == 255).all()
