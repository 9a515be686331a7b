"""Draw `docs/pictures/shapes.png`: what a policy is shown in `shapes`, and what it answers before and after training.

gxpo train examples/shapes.yaml --out runs/shapes
python scripts/pages/plot_shapes.py runs/shapes docs/pictures/shapes.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from gxpo.base import media
from gxpo.forest import records
from gxpo.forest.forest import Forest

SIDE, GAP, LINES = 96, 14, 54  # pixels of a picture, between two, of the text below


def first_answers(forest: Forest, n: int) -> list[tuple[str, str, str]]:
    """List (reference, question, answer) of the first attempts that show a picture each."""
    out = []
    for r in range(min(n, forest.n_trajectories)):
        (ref,) = forest.media[int(forest.prompt_node[r])]
        question = str(forest.prompt_text[r]).rpartition(">")[2]
        out.append((ref, question, str(forest.action_text[int(forest._step_begin[r])])))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=8)
    arguments = parser.parse_args()
    files = sorted((arguments.run / "evaluations").glob("step-*.jsonl"))
    before, after = (first_answers(records.load(f), arguments.n) for f in (files[0], files[-1]))
    page = Image.new("RGB", (arguments.n * (SIDE + GAP) + GAP, SIDE + LINES + GAP), "white")
    pen = ImageDraw.Draw(page)
    for i, ((ref, question, first), (_, _, last)) in enumerate(zip(before, after, strict=True)):
        x = GAP + i * (SIDE + GAP)
        pixels = np.kron(media.PICTURES.pixels(ref), np.ones((SIDE // 32, SIDE // 32, 1), dtype=np.uint8))
        page.paste(Image.fromarray(pixels), (x, GAP))
        for line, text in enumerate((question, f"before: {first}", f"after: {last}")):
            pen.text((x, GAP + SIDE + 4 + 15 * line), text, fill="black")
    page.save(arguments.out)


if __name__ == "__main__":
    main()
