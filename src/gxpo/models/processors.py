"""Processors of pictures: our own for small models, those of transformers for checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gxpo.decoder.vision import vision_of
from gxpo.errors import ModelError

if TYPE_CHECKING:
    from gxpo.decoder.vision import Grid, Processor
    from gxpo.media import Pixels

FILE = "preprocessor_config.json"  # where transformers looks, too
KIND = "image_processor_type"


@dataclass(frozen=True)
class NearestProcessor:
    """Pictures scaled to `size` x `size` pixels by the nearest, values to [-1, 1].

    patch  pixels of the side of what a row stands for: of the tower's patches, times what pixel shuffle joins
    tiles  the model reads several tiles of a picture, and here one (Idefics3, SmolVLM)
    """

    size: int
    patch: int
    tiles: bool = False

    def grid(self, height: int, width: int) -> Grid:
        side = self.size // self.patch
        return 1, side, side

    def inputs(self, pictures: Sequence[Pixels]) -> Mapping[str, Tensor]:
        """pixel_values [n, 3, size, size] float32; of tiles [n, 1, 3, size, size]."""
        scaled = np.stack([nearest(p, self.size, self.size) for p in pictures])
        pixels = torch.from_numpy(scaled).permute(0, 3, 1, 2).to(torch.float32) / 127.5 - 1
        return {"pixel_values": pixels[:, None] if self.tiles else pixels}


@dataclass(frozen=True)
class PatchProcessor:
    """Pictures in patches, as Qwen2-VL, 2.5 and 3 read them, each a frame repeated `frames` times; sides scaled by the
    nearest pixel to the closest multiple of `patch` * `merge`, values to [-1, 1]. A row for `merge` x `merge` patches.
    """

    patch: int
    merge: int = 2
    frames: int = 2

    def grid(self, height: int, width: int) -> Grid:
        side = self.patch * self.merge
        return 1, max(1, round(height / side)), max(1, round(width / side))

    def inputs(self, pictures: Sequence[Pixels]) -> Mapping[str, Tensor]:
        """pixel_values [patches of all pictures, 3 * frames * patch * patch] float32, the patches of a row together;
        image_grid_thw [n, 3]: frames, and patches of the height and width."""
        found = [self._patches(pixels) for pixels in pictures]
        return {
            "pixel_values": torch.cat([patches for patches, _ in found]),
            "image_grid_thw": torch.tensor([grid for _, grid in found]),
        }

    def _patches(self, pixels: Pixels) -> tuple[Tensor, Grid]:
        _, rows, columns = self.grid(*pixels.shape[:2])
        p, m = self.patch, self.merge
        scaled = torch.from_numpy(nearest(pixels, rows * m * p, columns * m * p)).to(torch.float32) / 127.5 - 1
        cut = scaled.reshape(rows, m, p, columns, m, p, 3).permute(0, 3, 1, 4, 6, 2, 5)  # R C m m 3 p p
        frames = cut[:, :, :, :, :, None].expand(-1, -1, -1, -1, -1, self.frames, -1, -1)
        return frames.reshape(rows * columns * m * m, -1), (1, rows * m, columns * m)


def nearest(pixels: Pixels, height: int, width: int) -> Pixels:
    """Pixels [height, width, 3]: each the nearest one of a picture of another size."""
    if pixels.shape[:2] == (height, width):
        return pixels
    y = ((np.arange(height) + 0.5) * pixels.shape[0] / height).astype(np.int64)
    x = ((np.arange(width) + 0.5) * pixels.shape[1] / width).astype(np.int64)
    return pixels[y][:, x]


def save_processor(model: Any, folder: Path) -> None:
    """Write the processor of a model that sees beside its weights."""
    vision = vision_of(model)
    if vision is None:
        return
    processor: Any = vision.processor
    if hasattr(processor, "save_pretrained"):
        processor.save_pretrained(folder)
    else:
        told = {KIND: type(processor).__name__, **asdict(processor)}
        (folder / FILE).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def load_processor(name: str, path: Path | None) -> Processor:
    """The processor that lies beside the weights of the model called `name`."""
    file = None if path is None else path / FILE
    told = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}
    kind = told.pop(KIND, None)
    for own in (NearestProcessor, PatchProcessor):
        if kind == own.__name__:
            return own(**told)
    raise ModelError(f"model {name!r}: its processor of pictures is not known here")
