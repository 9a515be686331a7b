"""Picture processors of small models: grids, values, order of patches, files; ids around a picture."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gxpo.models.processors import NearestProcessor, PatchProcessor, ids_around, load_processor


def test_a_nearest_processor_scales_to_its_size_and_to_one():
    pixels = np.zeros((2, 2, 3), dtype=np.uint8)
    pixels[0] = 255  # the upper half white
    processor = NearestProcessor(4, 2)
    values = processor.inputs([pixels])["pixel_values"]
    assert processor.grid(2, 2) == (1, 2, 2) and values.shape == (1, 3, 4, 4)
    assert values[0, :, :2].eq(1).all() and values[0, :, 2:].eq(-1).all()
    assert NearestProcessor(4, 2, tiles=True).inputs([pixels])["pixel_values"].shape == (1, 1, 3, 4, 4)


@pytest.mark.parametrize(("height", "width", "grid"), [(8, 12, (1, 2, 3)), (1, 300, (1, 1, 75)), (9, 11, (1, 2, 3))])
def test_sides_go_to_the_closest_multiple_and_are_never_zero(height, width, grid):
    assert PatchProcessor(patch=2).grid(height, width) == grid


def test_the_patches_of_a_row_lie_together():
    # 4 x 4 pixels are one row of 2 x 2 patches; red tells the pixels apart
    pixels = np.zeros((4, 4, 3), dtype=np.uint8)
    pixels[..., 0] = np.arange(16).reshape(4, 4)
    inputs = PatchProcessor(patch=2, frames=1).inputs([pixels])
    red = ((inputs["pixel_values"][:, :4] + 1) * 127.5).round().int().tolist()
    assert inputs["image_grid_thw"].tolist() == [[1, 2, 2]] and inputs["pixel_values"].shape == (4, 12)
    assert red == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def test_pictures_of_several_sizes_are_concatenated():
    inputs = PatchProcessor(patch=2).inputs([np.zeros((4, 4, 3), np.uint8), np.zeros((4, 8, 3), np.uint8)])
    assert inputs["image_grid_thw"].tolist() == [[1, 2, 2], [1, 2, 4]] and len(inputs["pixel_values"]) == 4 + 8
    assert torch.equal(inputs["pixel_values"], torch.full_like(inputs["pixel_values"], -1.0))


def test_a_written_processor_is_read_back(tmp_path):
    file = tmp_path / "preprocessor_config.json"
    file.write_text('{"image_processor_type": "PatchProcessor", "patch": 4, "merge": 1, "frames": 3}')
    assert load_processor("model", tmp_path, None) == PatchProcessor(4, 1, 3)


def test_ids_around_a_picture_need_all_of_its_tokens():
    names = {7: "<fake_token_around_image>", 8: "<global-img>"}
    added = {i: SimpleNamespace(content=name) for i, name in names.items()}
    tokenizer = SimpleNamespace(added_tokens_decoder=added)
    assert ids_around("smolvlm", tokenizer) == ((7, 8), (7,))
    assert ids_around("llava", tokenizer) == ((), ())
    del added[8]
    assert ids_around("smolvlm", tokenizer) == ((), ())
