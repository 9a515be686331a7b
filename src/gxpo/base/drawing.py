"""Small pictures by numpy alone: rectangles, text of 3 x 5 pixels, crops and scaling. Pixels are uint8 [H, W, 3]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gxpo.base.media import Pixels

Colour = tuple[int, int, int]  # red, green, blue, 0 to 255
Box = tuple[int, int, int, int]  # x, y, width, height, in pixels; x to the right and y down, from the top left corner

BLACK, WHITE, GREY = (0, 0, 0), (255, 255, 255), (110, 110, 110)
COLOURS: dict[str, Colour] = {
    "red": (220, 40, 40), "green": (40, 190, 60), "blue": (60, 90, 240), "yellow": (235, 215, 50),
    "purple": (170, 60, 200), "cyan": (60, 210, 220),
}  # fmt: skip

GLYPH_WIDTH, GLYPH_HEIGHT = 3, 5
# Rows of each character from the top; a row's bits are its pixels, 4 the left one.
GLYPHS = {
    "0": "75557", "1": "26227", "2": "71747", "3": "71317", "4": "55711", "5": "74717", "6": "74757", "7": "71122",
    "8": "75757", "9": "75717", "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644",
    "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755", "N": "65555",
    "O": "25552", "P": "65644", "Q": "25563", "R": "65655", "S": "34216", "T": "72222", "U": "55557", "V": "55552",
    "W": "55775", "X": "55255", "Y": "55222", "Z": "71247", " ": "00000", "-": "00700", ".": "00002",
}  # fmt: skip


def canvas(width: int, height: int, colour: Colour) -> Pixels:
    """A picture of one colour."""
    return np.full((height, width, 3), colour, dtype=np.uint8)


def fill(pixels: Pixels, box: Box, colour: Colour) -> None:
    """Fill a rectangle, as far as it is in the picture."""
    x, y, width, height = box
    pixels[max(y, 0) : max(y + height, 0), max(x, 0) : max(x + width, 0)] = colour


def frame(pixels: Pixels, box: Box, colour: Colour, thick: int = 1) -> None:
    """Draw the edge of a rectangle, within it."""
    x, y, width, height = box
    for edge in (
        (x, y, width, thick),
        (x, y + height - thick, width, thick),
        (x, y, thick, height),
        (x + width - thick, y, thick, height),
    ):
        fill(pixels, edge, colour)


def text_size(text: str, scale: int = 1) -> tuple[int, int]:
    """Width and height of a text in pixels; characters are one pixel apart, times `scale`.

    >>> text_size("42"), text_size("7", scale=2)
    ((7, 5), (6, 10))
    """
    return ((GLYPH_WIDTH + 1) * len(text) - 1) * scale, GLYPH_HEIGHT * scale


def write(pixels: Pixels, text: str, x: int, y: int, colour: Colour, scale: int = 1) -> None:
    """Write digits, capitals and " -." with their top left corner at (x, y). KeyError for any other character."""
    for k, character in enumerate(text):
        for row, bits in enumerate(GLYPHS[character]):
            for column in range(GLYPH_WIDTH):
                if int(bits) & 4 >> column:
                    left = x + ((GLYPH_WIDTH + 1) * k + column) * scale
                    fill(pixels, (left, y + row * scale, scale, scale), colour)


def write_in(pixels: Pixels, text: str, box: Box, colour: Colour, scale: int = 1) -> None:
    """Write a text in the middle of a rectangle."""
    width, height = text_size(text, scale)
    write(pixels, text, box[0] + (box[2] - width + 1) // 2, box[1] + (box[3] - height + 1) // 2, colour, scale)


def scaled(pixels: Pixels, width: int, height: int) -> Pixels:
    """The picture in another size, by nearest neighbour: each pixel is the one at its own middle.

    >>> scaled(np.arange(12, dtype=np.uint8).reshape(1, 4, 3), 2, 1)[0, :, 0].tolist()
    [3, 9]
    """
    rows = (2 * np.arange(height) + 1) * pixels.shape[0] // (2 * height)
    columns = (2 * np.arange(width) + 1) * pixels.shape[1] // (2 * width)
    return pixels[rows[:, None], columns[None, :]]


def cropped(pixels: Pixels, box: Box) -> Pixels:
    """The part of a picture inside a rectangle that lies in the picture."""
    x, y, width, height = box
    return pixels[y : y + height, x : x + width]


def noisy(pixels: Pixels, random: np.random.Generator, max_change: int) -> Pixels:
    """The picture with every value off by up to `max_change`."""
    values = pixels.astype(np.int16) + random.integers(
        -max_change, max_change, pixels.shape, dtype=np.int16, endpoint=True
    )
    return values.clip(0, 255).astype(np.uint8)
