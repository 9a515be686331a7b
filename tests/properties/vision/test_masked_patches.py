"""Masked patches: which cells of a picture are hidden, what stays, and how far a policy depends on its pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.properties.vision.families import own_logits, stock

from gxpo.algorithms.signals import SignalTools, masked_observation
from gxpo.algorithms.signals.masked_observation import MaskedObservation, masked_picture, picture_kl
from gxpo.base import media
from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.models.chat.plain import PlainChat
from gxpo.models.decoder.vision import picture_grid_of, vision_of
from gxpo.models.tiny import IMAGE, tiny_vision_model
from gxpo.training.models import character_tokenizer

TOKENIZER = character_tokenizer(IMAGE)
LEARNER = TorchLearner(tiny_vision_model(), lr=0.0)
VISION = vision_of(LEARNER.model)


def pixels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 256, (32, 32, 3), dtype=np.uint8)  # no value is black


def tools(step: int = 1, seed: int = 0) -> SignalTools:
    grid = picture_grid_of(LEARNER.model)
    return SignalTools(LEARNER, lambda ids: "", 2, step, seed, picture_grid=grid)


def forest_of(*pictures: np.ndarray) -> Forest:
    parts = [[{"type": "image", "image": p}, {"type": "text", "text": "row?"}] for p in pictures]
    chat = PlainChat(TOKENIZER, VISION.ids)
    prompts = [chat.start([{"role": "user", "content": own_part}]).context for own_part in parts]
    return Forest.from_completions(prompts, [[[52, 2], [53, 2]] for _ in prompts], [1.0, 0.0] * len(prompts))


def hidden_cells(forest: Forest) -> dict[int, np.ndarray]:
    """[4, 4] bool by prompt node: cells of 8 x 8 pixels that are black; every cell is black or as it was."""
    out = {}
    for node, (ref,) in forest.media.items():
        cells = media.PICTURES.pixels(ref).reshape(4, 8, 4, 8, 3).transpose(0, 2, 1, 3, 4).reshape(4, 4, -1)
        assert set(np.unique((cells == 0).mean(-1))) <= {0.0, 1.0}
        out[node] = (cells == 0).all(-1)
    return out


def test_cells_are_hidden_whole_and_the_rest_stays():
    own_pixels = pixels(1)
    forest = forest_of(own_pixels)
    masked = MaskedObservation().masked(forest, tools())
    (cells,) = hidden_cells(masked).values()
    visible_mask = ~np.kron(cells, np.ones((8, 8), dtype=bool))
    (ref,) = masked.media[0]
    assert 0 < cells.sum() < 16 and np.array_equal(media.PICTURES.pixels(ref)[visible_mask], own_pixels[visible_mask])
    text = forest.token < media.FIRST
    assert torch.equal(masked.token[text], forest.token[text])
    assert masked.token[~text].tolist() == list(media.ids(ref, 16))


def test_what_is_hidden_depends_on_seed_step_and_picture_alone():
    forest = forest_of(pixels(2), pixels(3))
    first = hidden_cells(MaskedObservation().masked(forest, tools()))
    cells_alone = hidden_cells(MaskedObservation().masked(forest_of(pixels(3)), tools()))
    assert np.array_equal(first[3], cells_alone[0]) and not np.array_equal(first[0], first[3])
    for other in (tools(step=2), tools(seed=1)):
        assert not np.array_equal(hidden_cells(MaskedObservation().masked(forest, other))[0], first[0])


def test_a_share_of_the_cells_is_hidden():
    white = np.full((32, 32, 3), 255, dtype=np.uint8)
    shares = [(masked_picture(white, (4, 4), 0.6, "black", 0, step, 77) == 0).mean() for step in range(200)]
    assert abs(np.mean(shares) - 0.6) < 4 * (0.6 * 0.4 / (64 * 200)) ** 0.5


def test_patches_of_the_authors_size_and_the_mean():
    own_values = np.zeros((30, 20, 3), dtype=np.uint8)
    own_values[:15] = 200
    actual = masked_picture(own_values, (14, 14), 1.0, "mean", 0, 1, 5)
    assert (actual == 100).all()
    some = masked_picture(np.full((30, 20, 3), 255, dtype=np.uint8), (14, 14), 0.5, "black", 0, 1, 5)
    for y, x in ((0, 0), (0, 14), (14, 0), (14, 14), (28, 0), (28, 14)):
        assert len(np.unique(some[y : y + 14, x : x + 14])) == 1


def test_tokens_alone_can_be_hidden_and_patches_need_a_picture():
    forest = forest_of(pixels(4))
    masked = MaskedObservation(mask_unit="tokens", share=1.0).masked(forest, tools())
    rows = forest.token >= media.FIRST
    assert torch.equal(masked.token[rows], forest.token[rows]) and masked.media == forest.media
    assert masked.token[17:21].tolist() == [2, 2, 2, 2], "row? is blank"
    bare = Forest.from_completions([[1, 5]], [[[6], [7]]], [1.0, 0.0])
    with pytest.raises(GxpoError, match="no picture is shown"):
        MaskedObservation(mask_unit="patches").masked(bare, tools())


def test_the_masked_log_probs_are_those_of_the_masked_pictures():
    forest = forest_of(pixels(5))
    part = MaskedObservation()
    actual = part.compute(forest, {}, tools())["masked_logprob"]
    output = forest_of(media.PICTURES.pixels(part.masked(forest, tools()).media[0][0]))  # a task with that picture
    assert torch.equal(actual, LEARNER.outputs(output)["logprob"])
    assert (actual - LEARNER.outputs(forest)["logprob"]).abs().max() > 1e-4


def test_dependence_on_a_picture_is_a_kl_of_distributions(monkeypatch):
    seen_forest = forest_of(pixels(6))
    grey = forest_of(np.broadcast_to(pixels(6).mean((0, 1)).round().astype(np.uint8), (32, 32, 3)).copy())
    own_stock, each = stock(LEARNER.model), []
    with torch.no_grad():
        for node in (1, 2):  # the two answers
            p, q = (own_logits(own_stock, LEARNER.model, f.context(node)).log_softmax(-1) for f in (seen_forest, grey))
            p, q = (x[-3:-1, :-1].double() for x in (p, q))  # where its two tokens are sampled, without the placeholder
            each += (p.exp() * (p - q)).sum(1).tolist()
    assert 0.9 * np.mean(each) < picture_kl(seen_forest, LEARNER) < np.mean(each)  # of 64 ids, the others as one
    monkeypatch.setattr(masked_observation, "LIKELIEST", p.shape[1])
    assert picture_kl(seen_forest, LEARNER) == pytest.approx(np.mean(each), rel=1e-5)


def test_a_policy_depends_on_no_picture_that_is_of_one_colour():
    grey = np.full((32, 32, 3), 90, dtype=np.uint8)
    assert picture_kl(forest_of(grey), LEARNER) == 0.0
    assert picture_kl(forest_of(pixels(6)), LEARNER) > 1e-6
    assert picture_kl(Forest.from_completions([[1, 5]], [[[6], [7]]], [1.0, 0.0]), LEARNER) is None
