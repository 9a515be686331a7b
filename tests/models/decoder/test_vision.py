"""Positions of m-RoPE against transformers' get_rope_index, by hand, and along the paths of a forest."""

import random

import pytest
import torch
from tests.properties.vision.families import IMAGE, MODELS, START, picture
from tests.properties.vision.test_learner import episodes, forest_of

from gxpo.base import media
from gxpo.learning.packing import Packing
from gxpo.models.decoder.vision import triples_of, vision_of

WITH_TRIPLES = ["qwen2-vl", "qwen2.5-vl", "qwen3-vl"]


@pytest.mark.parametrize("family", WITH_TRIPLES)
def test_positions_are_those_of_transformers(family):
    model = MODELS[family]()
    vision = vision_of(model)
    assert vision is not None and triples_of(model) is vision
    draw = random.Random(0)
    output = 0
    for _ in range(200):
        ids = [draw.randrange(1, 50) for _ in range(draw.randrange(0, 5))]
        pictures = [picture(draw.randrange(50), 8 * draw.randrange(1, 7), 8 * draw.randrange(1, 7)) for _ in range(3)]
        pictures = pictures[: draw.randrange(0, 4)]
        for ref in pictures:
            ids += [START, *vision.ids(ref), *(draw.randrange(1, 50) for _ in range(draw.randrange(1, 6)))]
        ids += [3]
        output += len(pictures)
        rows = torch.tensor([[media.is_row(i) for i in ids]])
        grids = [vision.processor.inputs([media.PICTURES.pixels(ref)])["image_grid_thw"] for ref in pictures]
        theirs, delta = model.model.get_rope_index(
            torch.tensor([[IMAGE if media.is_row(i) else i for i in ids]]),
            mm_token_type_ids=rows.int(),
            image_grid_thw=torch.cat(grids) if grids else None,
        )
        ours, after = vision.positions(ids)
        assert torch.equal(ours, theirs[:, 0])
        assert after == len(ids) + int(delta)
    assert output > 250


def test_text_goes_on_behind_the_longer_side():
    vision = vision_of(MODELS["qwen2.5-vl"]())
    assert vision is not None
    ids = [5, 6, *vision.ids(picture(0, 16, 24)), 7, 8]  # two rows of three
    ours, after = vision.positions(ids)
    assert ours.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert after == 7


def test_a_prefix_ending_in_a_picture_has_the_same_positions():
    vision = vision_of(MODELS["qwen2.5-vl"]())
    assert vision is not None
    ids = [5, *vision.ids(picture(1, 24, 16)), 7]
    full_value, _ = vision.positions(ids)
    for n in range(1, len(ids)):
        assert torch.equal(vision.positions(ids[:n])[0], full_value[:, :n])


@pytest.mark.parametrize("family", WITH_TRIPLES)
def test_every_path_of_a_forest_has_the_positions_of_its_ids(family):
    model = MODELS[family]()
    vision = vision_of(model)
    assert vision is not None
    actual = episodes(model)
    forest = forest_of(actual)
    position = vision.positions_in(forest)
    assert position.shape == (3, forest.n_tokens) and forest.n_tokens < sum(len(i) for e in actual for i, _ in e)
    parent, first = forest.parent.tolist(), forest.first_token.tolist()
    seen_count = 0
    for leaf in range(forest.n_nodes):
        path, node = [], leaf
        while node >= 0:
            path = [*range(first[node], first[node + 1]), *path]
            node = parent[node]
        assert torch.equal(position[:, path], vision.positions(forest.token[path].tolist())[0])
        seen_count += bool((forest.token[path] >= media.FIRST).any())
    assert seen_count > 5


def test_other_models_keep_depths():
    model = MODELS["llava"]()
    assert triples_of(model) is None
    forest = forest_of(episodes(model))
    packing = Packing(forest)
    assert packing.position is packing.packed.position
