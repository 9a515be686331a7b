"""Letters that flow methods draw before and after training, a row for each method, from the rows of a study.

    python scripts/pages/plot_letters.py studies/flows_letters.jsonl docs/pictures/letters.png

Three samples of each letter, from the same initial noise in every row (seed 0). Prints the diversity of drawn letters:
the mean distance of two of one letter, per pixel, of all stroke weights and of the boldest fifth.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gxpo.environments.tasks.letters import LETTERS, draw_letters

SCALE, MARGIN = 3, 130


def strip(pictures: str) -> np.ndarray:
    """Pixels [H, W] of the pictures of a row: those of a letter side by side, a wider gap after each letter."""
    grey = np.frombuffer(base64.b64decode(pictures), np.uint8).reshape(len(LETTERS), -1, 8, 8)
    columns = [np.pad(np.concatenate([np.pad(x, 1) for x in row], 1), ((0, 0), (0, 2))) for row in grey]
    return np.concatenate(columns, 1)[:, :-2].repeat(SCALE, 0).repeat(SCALE, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = [row for line in arguments.store.read_text().splitlines() if (row := json.loads(line))]
    rows = [row for row in rows if row["seed"] == arguments.seed]
    first, last = "0", str(max(map(int, rows[0]["by_step"])))
    parts = [("before", rows[0]["by_step"][first]["pictures"])]
    parts += [(row["arm"], row["by_step"][last]["pictures"]) for row in rows]
    strips = [strip(pictures) for _, pictures in parts]
    height, width = strips[0].shape
    page = Image.new("L", (MARGIN + width, len(strips) * (height + 2 * SCALE)), 255)
    for i, ((name, _), pixels) in enumerate(zip(parts, strips, strict=True)):
        top = i * (height + 2 * SCALE)
        page.paste(Image.fromarray(pixels), (MARGIN, top))
        ImageDraw.Draw(page).text((4, top + height / 2), name, fill=0, font=ImageFont.load_default(14), anchor="lm")
    page.save(arguments.out, optimize=True)

    pixels, classes, weights = draw_letters(2000, seed=3)
    for name, is_shown in (("all", weights >= 0), ("the boldest fifth", weights >= 0.8)):
        pairs = [
            np.sqrt(np.square(a - b).mean())
            for c in range(len(LETTERS))
            for a, b in itertools.combinations(pixels[(classes == c) & is_shown][:32], 2)
        ]
        print(f"diversity of drawn letters, {name}: {np.mean(pairs):.3f}")
        print(f"brightness of drawn letters, {name}: {pixels[is_shown].mean():.3f}")


if __name__ == "__main__":
    main()
