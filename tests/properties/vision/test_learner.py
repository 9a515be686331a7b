"""Packed forests with pictures against flat rows and against transformers' own forward pass with pixel_values."""

import copy
from typing import Any

import pytest
import torch
from tests.properties.vision.families import MODELS, exact, exact_rotary, own_logprobs, picture, stock

from gxpo.base import media
from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.forest.records import SCHEMA
from gxpo.learning.lora import LoraSettings
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.vision import vision_of

SIZES = ((32, 32), (32, 48), (16, 64))


def episodes(model: Any) -> list[list[tuple[list[int], bool]]]:
    """Trajectories as pieces (ids, whether the policy wrote them): two pictures in a prompt, forks behind them, a
    picture in an observation."""
    vision = vision_of(model)
    assert vision is not None
    one, two, three = (list(vision.ids(picture(i, *size))) for i, size in enumerate(SIZES))
    prompt = [1, 7, 8, *one, 9, *two, 10, 11]
    return [
        [(prompt, False), ([12, 13, 14], True)],
        [(prompt, False), ([12, 15], True), ([16, *three, 17], False), ([18, 19], True)],
        [(prompt, False), ([12, 15], True), ([16, *three, 20], False), ([21, 22, 23], True)],
        [([1, 7, 8, *one, 24], False), ([25, 26], True)],
        [([1, 7, 8, 30, 31], False), ([25, 26], True)],
    ]


def forest_of(found: list[list[tuple[list[int], bool]]]) -> Forest:
    records = []

    def told(name: str, ids: list[int]) -> dict[str, Any]:
        record, media_at = media.to_record(ids)
        return {name: record, "media_at": media_at}

    for n, pieces in enumerate(found):
        turns: list[dict[str, Any]] = []
        for ids, acts in pieces[1:]:
            if acts:
                seen_pop = turns.pop() if turns and "action" not in turns[-1] else {}
                turns.append({**seen_pop, "action": ids})
            else:
                turns.append(told("observation", ids))
        prompt = told("prompt", pieces[0][0])
        records.append({"schema": SCHEMA, "id": str(n), "group": "g", **prompt, "turns": turns, "reward": float(n)})
    return Forest.from_records(records)


def weight(n: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("family", sorted(MODELS))
@pytest.mark.parametrize("kernels", ["auto", "transformers"])
def test_packed_is_flat_is_transformers(family, kernels, monkeypatch):
    exact_rotary(monkeypatch)
    model = exact(MODELS[family]())
    actual = episodes(model)
    forest = forest_of(actual)
    packed, flat = (TorchLearner(model, lr=0.0, layout=layout, kernels=kernels) for layout in ("packed", "flat"))
    assert packed.layout == "packed" and (packed._readout.decoder is not None) == (kernels == "auto")
    # transformers, one row a trajectory
    own_exact = exact(stock(model))
    messages = []
    for pieces in actual:
        ids = [i for piece, _ in pieces for i in piece]
        acts = torch.tensor([acts for piece, acts in pieces for _ in piece])
        messages.append(own_logprobs(own_exact, model, ids)[acts[1:]])
    expected = torch.cat(messages)
    assert forest.n_entries == len(expected)
    w = weight(len(expected))
    (expected * w).sum().backward()
    gradient = {name: p.grad for name, p in own_exact.named_parameters() if p.grad is not None}
    assert any("vision" in name or "visual" in name for name in gradient)
    for learner in (packed, flat):
        assert (learner.outputs(forest)["logprob"] - expected.detach()).abs().max() < 1e-10
        ours = learner.gradient(forest, lambda x: (x["logprob"] * w).sum(), names=("logprob",))
        ours = {name: g for name, g in ours.items() if name in gradient or bool(g.abs().max())}
        assert ours.keys() == gradient.keys()
        for name, g in gradient.items():
            assert (ours[name].double() - g).norm() <= 1e-10 * max(1.0, float(g.norm())), name


@pytest.mark.parametrize("family", sorted(MODELS))
def test_the_tower_runs_once_for_each_picture(family, monkeypatch):
    model = MODELS[family]()
    vision = vision_of(model)
    assert vision is not None
    read_refs = []
    features = vision.features
    monkeypatch.setattr(vision, "features", lambda refs: (read_refs.extend(refs), features(refs))[1])
    TorchLearner(model, lr=0.0).outputs(forest_of(episodes(model)))
    assert len(read_refs) == len(set(read_refs)) == 3


@pytest.mark.parametrize("family", ["smolvlm", "qwen2.5-vl", "qwen3-vl"])
@pytest.mark.parametrize("kernels", ["auto", "transformers"])
def test_a_reference_sees_with_a_tower_of_its_own(family, kernels):
    model = MODELS[family]()
    forest = forest_of(episodes(model))
    learner = TorchLearner(model, lr=0.0, reference=True, kernels=kernels)
    before = learner.outputs(forest)["logprob"]
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "vision" in name or "visual" in name:
                p.mul_(1.5)
    assert (learner.outputs(forest)["logprob"] - before).abs().max() > 1e-3
    assert torch.equal(learner.outputs(forest, policy="reference")["logprob"], before)


@pytest.mark.parametrize("family", ["llava", "qwen2.5-vl", "qwen3-vl"])
@pytest.mark.parametrize("kernels", ["auto", "transformers"])
def test_adapters_and_recomputed_layers(family, kernels):
    model = MODELS[family]()
    forest = forest_of(episodes(model))
    plain = TorchLearner(model, lr=0.0, kernels=kernels)
    w = weight(forest.n_entries)

    def loss(x):
        return (x["logprob"] * w).sum()

    expected, gradient = plain.outputs(forest)["logprob"], plain.gradient(forest, loss, names=("logprob",))
    again = TorchLearner(copy.deepcopy(model), lr=0.0, kernels=kernels, recompute=True)
    for name, g in again.gradient(forest, loss, names=("logprob",)).items():
        assert (g - gradient[name]).norm() <= 1e-4 * gradient[name].norm() + 1e-5, name
    adapted = TorchLearner(copy.deepcopy(model), lr=0.0, kernels=kernels, lora=LoraSettings(rank=2))
    assert (adapted.outputs(forest)["logprob"] - expected).abs().max() < 1e-5
    moved = adapted.gradient(forest, loss, names=("logprob",))
    assert any(bool(g.abs().max()) for name, g in moved.items() if "lora_B" in name)


@pytest.mark.parametrize("kernels", ["auto", "transformers"])
@pytest.mark.parametrize("layout", ["packed", "flat"])
def test_a_bound_on_pictures_changes_no_gradient(layout, kernels, monkeypatch):
    model = exact(MODELS["llava"]())
    vision = vision_of(model)
    assert vision is not None
    others = [[([1, 7, *vision.ids(picture(i)), 24], False), ([25, 26], True)] for i in (7, 8)]
    forest = forest_of([*episodes(model), *others])
    w = weight(forest.n_entries)
    output: list[int] = []
    features = vision.features
    monkeypatch.setattr(vision, "features", lambda refs: (output.append(len(refs)), features(refs))[1])
    actual = {}
    for bound in (None, 3, 2, 1):
        learner = TorchLearner(model, lr=0.0, layout=layout, kernels=kernels, images_per_microbatch=bound)
        output.clear()
        gradient = learner.gradient(forest, lambda x: (x["logprob"] * w).sum())
        actual[bound] = list(output), gradient
    for name, g in actual[None][1].items():
        for _, other in actual.values():
            assert (other[name] - g).norm() <= 1e-10 * max(1.0, float(g.norm())), name
    numbers = {bound: sorted(seen_value) for bound, (seen_value, _) in actual.items()}
    # one path shows three, and those of no further picture go with it
    assert numbers == {None: [5], 3: [2, 3], 2: [2, 3], 1: [1, 1, 3]}


def test_a_bound_on_pictures_cuts_a_tree_between_its_leaves():
    model = MODELS["llava"]()
    seen_ids = [list(vision_of(model).ids(picture(i))) for i in range(5)]  # type: ignore[union-attr]
    tree = [
        [([1, *seen_ids[0], 9], False), ([10], True), (seen_ids[1 + i % 4], False), ([11 + i], True)] for i in range(8)
    ]
    forest = forest_of(tree)

    def pictures(bound):
        learner = TorchLearner(model, lr=0.0, images_per_microbatch=bound)
        batches = learner._microbatches(learner._packing(forest), torch.arange(forest.n_entries))
        entries = sorted(e for b in batches for e in b.entries.tolist())
        return [len({*media.refs_in(b.tokens.tolist())}) for b in batches], entries

    everything = list(range(forest.n_entries))
    for bound, most in ((None, 5), (3, 3), (2, 2), (1, 2)):
        actual, entries = pictures(bound)
        assert entries == everything and max(actual) == most, bound
    with pytest.raises(ModelError, match=r"learner\.images_per_microbatch is 0; it must be at least 1"):
        TorchLearner(model, lr=0.0, images_per_microbatch=0)
