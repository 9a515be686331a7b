"""Pictures of grid worlds: a coloured cell for each tile, and the agent as a square within its cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gxpo.base.drawing import Colour, canvas, fill

if TYPE_CHECKING:
    from gxpo.base.media import Pixels

SIDE = 64  # pixels
LINE = (90, 100, 115)


def picture(state: str, colours: Mapping[str, Colour], agents: Mapping[str, str], agent: Colour) -> Pixels:
    """Draw a state (rows of one character per tile, separated by newlines) as pixels [64, 64, 3].

    colours  of tiles, by character
    agents   characters that show where the agent is -> the tile that it stands on
    """
    rows = state.split("\n")
    pixels = canvas(SIDE, SIDE, LINE)
    # edges are rounded from the whole picture, so any number of rows fills all of it
    for i, row in enumerate(rows):
        top, bottom = SIDE * i // len(rows), SIDE * (i + 1) // len(rows)
        for j, tile in enumerate(row):
            left, right = SIDE * j // len(row), SIDE * (j + 1) // len(row)
            box = (left, top, right - left - 1, bottom - top - 1)  # a line at the right and below
            fill(pixels, box, colours[agents.get(tile, tile)])
            if tile in agents:
                margin = (right - left) // 4
                inner = (left + margin, top + margin, right - left - 1 - 2 * margin, bottom - top - 1 - 2 * margin)
                fill(pixels, inner, agent)
    return pixels
