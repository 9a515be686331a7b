"""Picture processors: gxpo's own for small models, those of transformers for checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gxpo.base import media
from gxpo.base.drawing import scaled
from gxpo.base.errors import ModelError, PictureError, need
from gxpo.models.decoder.vision import vision_of

if TYPE_CHECKING:
    from gxpo.base.media import Pixels
    from gxpo.models.decoder.vision import Grid, Processor

FILE = "preprocessor_config.json"  # where transformers looks, too
KIND = "image_processor_type"
FAKE = "<fake_token_around_image>"
# tokens before and after the rows of a picture that their processors write, by type of model
AROUND = {name: ((FAKE, "<global-img>"), (FAKE,)) for name in ("idefics3", "smolvlm")}
TOWER_INPUTS = ("pixel_values", "image_grid_thw", "pixel_attention_mask")  # arguments of a vision tower


@dataclass(frozen=True)
class NearestProcessor:
    """Pictures scaled to `size` x `size` pixels by the nearest, values to [-1, 1].

    patch  pixels of a side of the area of a row: the tower's patch size times the factor of pixel shuffle
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
        scaled_pictures = np.stack([scaled(p, self.size, self.size) for p in pictures])
        pixels = torch.from_numpy(scaled_pictures).permute(0, 3, 1, 2).to(torch.float32) / 127.5 - 1
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
        picture_patches = [self._patches(pixels) for pixels in pictures]
        return {
            "pixel_values": torch.cat([patches for patches, _ in picture_patches]),
            "image_grid_thw": torch.tensor([grid for _, grid in picture_patches]),
        }

    def _patches(self, pixels: Pixels) -> tuple[Tensor, Grid]:
        _, rows, columns = self.grid(*pixels.shape[:2])
        p, m = self.patch, self.merge
        values = torch.from_numpy(scaled(pixels, columns * m * p, rows * m * p)).to(torch.float32) / 127.5 - 1
        patches = values.reshape(rows, m, p, columns, m, p, 3).permute(0, 3, 1, 4, 6, 2, 5)  # R C m m 3 p p
        frames = patches[:, :, :, :, :, None].expand(-1, -1, -1, -1, -1, self.frames, -1, -1)
        return frames.reshape(rows * columns * m * m, -1), (1, rows * m, columns * m)


class AutoPictures:
    """An image processor of transformers, in its form for Pillow (extra `vision`); each picture is prepared by itself.

    processor  of transformers; one that cuts pictures into tiles is told to leave them whole: a picture is one run of
               rows, with no text between tiles
    config     of the model

    `ModelError` where it gives what gxpo does not hand on, so that nothing of a picture is dropped.
    """

    def __init__(self, processor: Any, config: Any) -> None:
        self.processor, self._config = processor, config
        if getattr(processor, "do_image_splitting", False):
            processor.do_image_splitting = False
        self._grids: dict[tuple[int, ...], Grid] = {}

    def grid(self, height: int, width: int) -> Grid:
        """Grid in the processor's output for a picture of that size; else that of the tower's patches, joined as the
        model joins them and with its further row."""
        if (height, width) not in self._grids:
            sample_inputs = self.inputs([np.full((height, width, 3), 100, dtype=np.uint8)])
            self._grids[height, width] = self._grid(sample_inputs)
        return self._grids[height, width]

    def _grid(self, picture_inputs: Mapping[str, Tensor]) -> Grid:
        tower = self._config.vision_config
        if "image_grid_thw" in picture_inputs:
            frames, rows, columns = picture_inputs["image_grid_thw"][0].tolist()
            return frames, rows // tower.spatial_merge_size, columns // tower.spatial_merge_size
        side = tower.patch_size * (getattr(self._config, "scale_factor", None) or 1)
        rows, columns = (pixels // side for pixels in picture_inputs["pixel_values"].shape[-2:])
        # a CLIP tower has a row for the whole picture, and Llava leaves the first row out by default
        extra_rows = (tower.model_type == "clip_vision_model") - (
            getattr(self._config, "vision_feature_select_strategy", None) == "default"
        )
        return (1, 1, rows * columns + extra_rows) if extra_rows else (1, rows, columns)

    def inputs(self, pictures: Sequence[Pixels]) -> Mapping[str, Tensor]:
        """Outputs of the processor for each picture, concatenated."""
        picture_inputs = [self._picture_inputs(p) for p in pictures]
        if unknown := sorted({name for each in picture_inputs for name in each} - {*TOWER_INPUTS}):
            raise ModelError(
                f"{type(self.processor).__name__} gives {unknown[0]}, which gxpo does not hand to a tower: it knows "
                f"{', '.join(TOWER_INPUTS)}"
            )
        shapes = {each["pixel_values"].shape[1:] for each in picture_inputs}
        if len(shapes) > 1:
            raise ModelError(
                f"{type(self.processor).__name__} scales pictures to {len(shapes)} sizes, which can't go through the "
                "tower together: set a fixed size in preprocessor_config.json"
            )
        return {name: torch.cat([each[name] for each in picture_inputs]) for name in picture_inputs[0]}

    def _picture_inputs(self, pixels: Pixels) -> dict[str, Tensor]:
        try:
            return dict(self.processor(images=[pixels], return_tensors="pt", input_data_format="channels_last"))
        except Exception as error:  # processors refuse sizes, as sides of 1 to 300, by types of their own
            height, width, _ = pixels.shape
            reason = " ".join(str(error).split())[:200]
            name = type(self.processor).__name__
            raise PictureError(f"{name} can't prepare a picture of {width} x {height} pixels: {reason}") from error

    def save_pretrained(self, folder: Path) -> None:
        self.processor.save_pretrained(folder)


def ids_around(kind: str, tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and after the rows of a picture, for a type of model, as far as its tokenizer has all of them."""
    before, after = AROUND.get(kind, ((), ()))
    id_by_token = {str(token.content): int(i) for i, token in tokenizer.added_tokens_decoder.items()}
    if not {*before, *after} <= id_by_token.keys():
        return (), ()
    return tuple(id_by_token[name] for name in before), tuple(id_by_token[name] for name in after)


def save_processor(model: Any, folder: Path) -> None:
    """Write the picture processor of a vision model beside its weights."""
    vision = vision_of(model)
    if vision is None:
        return
    processor: Any = vision.processor
    if hasattr(processor, "save_pretrained"):
        processor.save_pretrained(folder)
    else:
        record = {KIND: type(processor).__name__, **asdict(processor)}
        (folder / FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def rows_of(processor: Processor) -> Callable[[str], tuple[int, ...]]:
    """Function from a picture's reference to the ids of its rows, for a model with this processor."""

    def rows(ref: str) -> tuple[int, ...]:
        height, width, _ = media.PICTURES.pixels(ref).shape
        return media.ids(ref, math.prod(processor.grid(height, width)))

    return rows


def load_processor(name: str, path: Path | None, config: Any) -> Processor:
    """Load the processor that lies beside the weights of the model `name`: gxpo's own, or one of transformers.

    path  its directory (None: an id on the hub);  config: the model's
    """
    file = None if path is None else path / FILE
    record = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}
    kind = record.pop(KIND, None)
    # gxpo's own processors name their class in the file; anything else is one of transformers
    for processor_class in (NearestProcessor, PatchProcessor):
        if kind == processor_class.__name__:
            return processor_class(**record)
    need("PIL.Image", "vision")
    transformers: Any = need("transformers", "train")
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(
            name if path is None else str(path), backend="pil", trust_remote_code=False
        )
    except Exception as error:  # as of models: transformers and the hub raise many types here
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"model {name!r} reads pictures, and its {FILE} can't be used: {reason}") from error
    return AutoPictures(processor, config)
