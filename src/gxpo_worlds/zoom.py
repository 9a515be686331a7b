"""Zoom: read a tiny digit in a large picture that is shown small, by cropping parts of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from gxpo.base.drawing import Box, canvas, cropped, fill, noisy, scaled, write_in
from gxpo.base.errors import ConfigError
from gxpo_worlds.grid import LEVEL, stream
from gxpo_worlds.screen import ScreenWorld

if TYPE_CHECKING:
    from gxpo.base.media import Pixels

SIDE, VIEW_SIDE = 256, 32  # pixels of the picture's side, and of what is shown of it
LEAST = 8  # pixels of a crop's side
READABLE = 64  # a crop up to this side still shows every pixel of the digit's font
PLATE, TWICE = 16, 2  # least pixels of the dark plate's side; size of the digit on it: 6 x 10 pixels
GREY, DARK, BRIGHT = (130, 130, 130), (20, 20, 70), (255, 240, 120)
NOISE = 25

CROP = re.compile(r"crop\(\s*" + r"\s*,\s*".join([r"(-?[0-9]{1,6})"] * 4) + r"\s*\)", re.IGNORECASE)
STATE = re.compile(r"(\d+),(\d+),(\d+),(\d+)(?:=(\d))?")


@dataclass(frozen=True)
class Hidden:
    """Level: a digit in the middle of 16 x 16 pixels, whose top left corner is at (x, y), on a plate around them.

    plate  pixels of the plate's side
    noise  further words of the key of the picture's noise
    """

    digit: int
    x: int
    y: int
    plate: int = PLATE
    noise: tuple[int, ...] = ()


@lru_cache(maxsize=64)
def picture(level: Hidden) -> Pixels:
    """Whole picture of a level, [256, 256, 3]; shared by the episodes of a group, so don't write to it."""
    pixels = canvas(SIDE, SIDE, GREY)
    more = (level.plate - PLATE) // 2
    fill(pixels, (level.x - more, level.y - more, level.plate, level.plate), DARK)
    write_in(pixels, str(level.digit), (level.x, level.y, PLATE, PLATE), BRIGHT, TWICE)
    return noisy(pixels, stream(LEVEL, level.digit, level.x, level.y, *level.noise), NOISE)


def clip(box: Box) -> Box:
    """Clip a rectangle to the picture, at least 8 pixels wide and high.

    >>> clip((-10, 200, 20, 100)), clip((300, 5, 2, 2))
    ((0, 200, 10, 56), (248, 5, 8, 8))
    """
    x, y, width, height = box
    left, top = (min(max(v, 0), SIDE - LEAST) for v in (x, y))
    right, bottom = (min(max(v, low + LEAST), SIDE) for v, low in ((x + width, left), (y + height, top)))
    return left, top, right - left, bottom - top


@dataclass(kw_only=True)
class Zoom(ScreenWorld[Hidden, "Box | int"]):
    """Zoom: a picture of 256 x 256 pixels with a tiny digit on a dark plate; it is shown at 32 x 32, where the plate
    can be seen and the digit can't be read.

    `crop(x,y,w,h)`  shows a part of the picture at 32 x 32, by nearest neighbour: x, y of its top left corner, width
                     and height, in pixels of the whole picture whatever is shown; clipped to it, at least 8 x 8
    one digit        the answer, which ends the episode

    What a crop shows depends on picture and box alone. The state is the box, `x,y,w,h`. Turns note `calls` in their
    info: one of "crop" with its clipped box, none in the answer's turn and where nothing could be read.

    cells  the plate is in the middle of one of cells x cells squares, 1 to 16; 0: anywhere
    plate  pixels of its side, 16 to 64; the larger, the easier it is found
    """

    max_turns: int = 3
    cells: int = 0
    plate: int = PLATE

    name: ClassVar[str] = "zoom"
    first: ClassVar[str] = f"0,0,{SIDE},{SIDE}"
    example: ClassVar[str] = "crop(0,0,128,128)"

    def _check(self) -> None:
        if type(self.cells) is not int or not 0 <= self.cells <= SIDE // PLATE:
            raise ConfigError(f"zoom: cells must be a whole number from 0 to {SIDE // PLATE}, not {self.cells!r}")
        if type(self.plate) is not int or not PLATE <= self.plate <= READABLE:
            raise ConfigError(f"zoom: plate must be a whole number from {PLATE} to {READABLE}, not {self.plate!r}")

    def _rules(self) -> str:
        return (
            f"A digit stands on a dark plate in a picture of {SIDE} x {SIDE} pixels, seen at {VIEW_SIDE} x "
            f"{VIEW_SIDE}. Which digit is it?\ncrop(x,y,w,h) shows a part of the picture: x and y of its top left "
            "corner, width and height, in pixels of the whole picture. A single digit is your answer."
        )

    def _make(self, seed: int) -> Hidden:
        random = stream(LEVEL, seed)
        # with cells the draws are cells, without them corners of the digit's box
        places = self.cells or SIDE - PLATE + 1
        digit, x, y = (int(random.integers(most)) for most in (10, places, places))
        if not self.cells:
            return Hidden(digit, x, y, self.plate)
        x, y = (((2 * k + 1) * SIDE // self.cells - PLATE) // 2 for k in (x, y))
        noise = int(random.integers(1 << 16))  # digits and places alone are so few that they are learnt by heart
        return Hidden(digit, x, y, self.plate, (noise,))

    def content(self, seed: int) -> str:
        level = self._make(seed)
        return " ".join([f"{level.digit} at {level.x},{level.y}", *map(str, level.noise)])

    def answer(self, seed: int) -> str:
        """Right answer of a seed's level: its digit."""
        return str(self._make(seed).digit)

    def _read(self, text: str) -> Box | int | None:
        # not isdigit(), which other alphabets' digits pass
        if len(text) == 1 and text in "0123456789":
            return int(text)
        match = CROP.fullmatch(text)
        if match is None:
            return None
        x, y, width, height = map(int, match.groups())
        return clip((x, y, width, height))

    def _result(self, state: str, action: Box | int) -> str | None:
        if isinstance(action, int):
            return f"{state}={action}"
        # a crop of what is shown already can't change the state, so it is illegal
        after = ",".join(map(str, action))
        return None if after == state else after

    def _notes(self, action: Box | int | None) -> Mapping[str, Any]:
        if action is None or isinstance(action, int):
            return {"calls": []}
        return {"calls": [{"name": "crop", "arguments": dict(zip(("x", "y", "w", "h"), action, strict=True))}]}

    def _verdict(self, state: str) -> bool | None:
        _, _, answer = state.partition("=")
        return int(answer) == self._level.digit if answer else None

    def _picture(self, state: str) -> Pixels:
        return scaled(cropped(picture(self._level), _box(state)), VIEW_SIDE, VIEW_SIDE)

    def _question(self, state: str) -> str:
        if self.style == "bare":
            return "digit?"
        x, y, width, height = _box(state)
        return f"You see x {x}, y {y}, width {width}, height {height}. Which digit is it?"

    def _legal(self, state: str) -> list[str]:
        """Every digit, and crops of 64 x 64 pixels."""
        corners = range(0, SIDE, READABLE)
        crops = [f"{x},{y},{READABLE},{READABLE}" for y in corners for x in corners]
        return [*"0123456789", *(f"crop({crop})" for crop in crops if crop != state)]

    def _best(self, state: str) -> str:
        """Digit if it can be read in the present crop, else a crop of the plate and its surroundings."""
        x, y, width, height = _box(state)
        # readable: the digit's whole box is shown, and no row or column of its font falls between two pixels
        level, margin = self._level, (VIEW_SIDE - PLATE) // 2
        inside = x <= level.x and level.x + PLATE <= x + width and y <= level.y and level.y + PLATE <= y + height
        if inside and max(width, height) <= READABLE:
            return str(level.digit)
        box = clip((level.x - margin, level.y - margin, VIEW_SIDE, VIEW_SIDE))
        return f"crop({','.join(map(str, box))})"

    def _is_state(self, state: str) -> bool:
        return STATE.fullmatch(state) is not None and clip(_box(state)) == _box(state)


def _box(state: str) -> Box:
    x, y, width, height = map(int, state.partition("=")[0].split(","))
    return x, y, width, height
