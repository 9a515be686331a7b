"""What a generator of 8 x 8 digits draws of each class in the first and in the last rollouts of a run, and in figures.

    gxpo train examples/diffusers.yaml    (or examples/picture_tokens.yaml)
    python scripts/pages/plot_digits.py runs/diffusers docs/pictures/digits.png

The upper half is of the first rollouts, the lower of the last, a column for each class. Prints of both: brightness;
diversity, the mean distance of two samples of one class, per pixel (root of the mean square, values in [0, 1]); and the
share that a logistic regression on real digits takes for the class asked for. Real digits have the third line.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from gxpo.base.media import FOLDER, PICTURE, PICTURES
from gxpo.base.picture_files import png

ByClass = dict[int, list[np.ndarray]]  # class -> pictures [8, 8] in [0, 1]


def samples(file: Path) -> ByClass:
    """Read pictures of a file of rollouts, by class."""
    by_class: ByClass = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        pixels = PICTURES.pixels(record["info"][PICTURE])[:, :, 0] / 255
        by_class.setdefault(int(record["task"].rpartition("/")[2]), []).append(pixels)
    return dict(sorted(by_class.items()))


def sheet(parts: list[ByClass], n: int, scale: int = 5) -> np.ndarray:
    """Return pixels [H, W, 3] of the first pictures of each class, one half below the other."""
    halves = []
    for by_class in parts:
        columns = [
            np.concatenate([np.pad(x, 1, constant_values=0.35) for x in pictures[:n]]) for pictures in by_class.values()
        ]
        halves.append(np.pad(np.concatenate(columns, 1), ((0, 3), (0, 0)), constant_values=1.0))
    grey = (np.concatenate(halves)[:-3] * 255).round().astype(np.uint8).repeat(scale, 0).repeat(scale, 1)
    return np.ascontiguousarray(grey[:, :, None].repeat(3, 2))


def figures(by_class: ByClass, reader: LogisticRegression) -> dict[str, float]:
    """Return brightness, diversity and the share that is read as the class asked for."""
    flat = {number: np.stack(pictures).reshape(len(pictures), -1) for number, pictures in by_class.items()}
    distances = [np.sqrt(np.square(a - b).mean()) for x in flat.values() for a, b in itertools.combinations(x[:40], 2)]
    right = [reader.predict(x) == number for number, x in flat.items()]
    return {
        "brightness": float(np.concatenate(list(flat.values())).mean()),
        "diversity": float(np.mean(distances)),
        "read as asked": float(np.concatenate(right).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=4, help="pictures of a class in each half")
    arguments = parser.parse_args()
    PICTURES.look_in(arguments.run / "rollouts" / FOLDER)
    files = sorted((arguments.run / "rollouts").glob("step-*.jsonl"))
    parts = [samples(file) for file in (files[0], files[-1])]
    pixels, numbers = load_digits(return_X_y=True)
    # every second digit is for the reader, the others are what its figure on real digits is of
    reader = LogisticRegression(max_iter=500).fit(pixels[::2] / 16, numbers[::2])
    real = {n: list((pixels[1::2] / 16)[numbers[1::2] == n].reshape(-1, 8, 8)) for n in range(10)}
    for name, by_class in zip((files[0].stem, files[-1].stem, "real digits"), (*parts, real), strict=True):
        print(f"{name:12}", "  ".join(f"{key} {x:.3f}" for key, x in figures(by_class, reader).items()))
    arguments.out.write_bytes(png(sheet(parts, arguments.n)))


if __name__ == "__main__":
    main()
