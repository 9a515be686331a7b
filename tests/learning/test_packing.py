"""Packed forward passes against flat ones and against the same trajectories written out in full."""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama, random_forest, small_llama

from gxpo.base.errors import ModelError
from gxpo.forest.forest import ACTION, Forest
from gxpo.learning.lora import LoraSettings
from gxpo.learning.packing import Packing, Row
from gxpo.learning.torch import TorchLearner

NAMES = ("logprob", "entropy")


def clipped(forest: Forest, proximal: torch.Tensor, credit: torch.Tensor):
    """PPO's clipped objective with an entropy bonus, averaged over trainable tokens."""
    trainable = forest.path_trainable

    def loss(x):
        ratio = (x["logprob"] - proximal).exp()
        gain = torch.minimum(ratio * credit, ratio.clamp(0.8, 1.2) * credit) + 0.05 * x["entropy"]
        return -gain[trainable].sum() / trainable.sum()

    return loss


def problem(forest: Forest, learner: TorchLearner, seed: int):
    """Proximal log-probs a little off the current ones, and a credit of its own for every path token."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, forest.n_entries, generator=generator, dtype=torch.float64)
    return learner.outputs(forest)["logprob"] + 0.3 * noise[0], noise[1]


def farthest(one: dict, other: dict) -> float:
    """Largest difference of two named tensors, relative to each tensor's norm."""
    assert one.keys() == other.keys()
    return max(float((one[n] - other[n]).norm() / other[n].norm().clamp_min(1e-12)) for n in one)


MODEL = clean_llama()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([8, 24, 100, 8192]))
def test_packed_equals_flat_equals_flattened(seed, limit):
    forest = random_forest(seed)
    written_out = forest.flatten()
    packed = TorchLearner(MODEL, lr=0.0, tokens_per_microbatch=limit)
    flat = TorchLearner(MODEL, lr=0.0, layout="flat", tokens_per_microbatch=limit)
    assert (packed.layout, flat.layout) == ("packed", "flat")
    proximal, credit = problem(forest, packed, seed)
    loss = clipped(forest, proximal, credit)
    x = packed.outputs(forest, NAMES)
    gradient = packed.gradient(forest, loss, names=NAMES)
    for learner, other in ((flat, forest), (flat, written_out), (packed, written_out)):
        y = learner.outputs(other, NAMES)
        for name in NAMES:
            assert torch.allclose(x[name], y[name], rtol=0, atol=1e-10)
        assert abs(float(loss(x) - loss(y))) < 1e-10
        assert farthest(gradient, learner.gradient(other, loss, names=NAMES)) < 1e-10


def test_the_battery_has_what_it_should():
    shared = credits = rebuilt = temperatures = empty = 0
    for seed in range(40):
        forest = random_forest(seed)
        uses = torch.bincount(forest.path_token, minlength=forest.n_tokens)
        shared += int((uses > 2).sum())
        credits += int(((forest.kind == ACTION) & (forest.parent >= 0) & (forest.kind[forest.parent] == ACTION)).sum())
        rebuilt += int((forest.parent < 0).sum()) > len(set(forest.group))
        empty += int((forest.first_token.diff() == 0).sum())
        both = [forest.sampling[r].get("temperature") == 0.7 for r in forest.path_trajectory.tolist()]
        cold = torch.zeros(forest.n_tokens).index_add_(0, forest.path_token, torch.tensor(both).float())
        temperatures += int(((cold > 0) & (cold < uses)).sum())
    assert min(shared, credits, rebuilt, temperatures, empty) > 10


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_stock_model(attention, lora):
    worst_logprob = worst_gradient = 0.0
    for seed in range(4):
        forest = random_forest(seed)
        model = partial(small_llama, attn_implementation=attention)
        packed, flat = (TorchLearner(model(), lr=0.0, layout=layout, lora=lora) for layout in ("packed", "flat"))
        assert packed.layout == "packed"
        if lora is not None:  # B is zero at first, and with it every gradient of A
            start = packed.snapshot()
            generator = torch.Generator().manual_seed(seed)
            moved = {n: x + 0.1 * torch.randn(x.shape, generator=generator) for n, x in start.items()}
            packed.restore(moved)
            flat.restore(moved)
        loss = clipped(forest, *problem(forest, packed, seed))
        x, y = packed.outputs(forest), flat.outputs(forest)
        worst_logprob = max(worst_logprob, float((x["logprob"] - y["logprob"]).abs().max()))
        one, other = packed.gradient(forest, loss, names=NAMES), flat.gradient(forest, loss, names=NAMES)
        worst_gradient = max(worst_gradient, farthest(one, other))
    assert worst_logprob < 1e-5 and worst_gradient < 1e-4


def test_unique_tokens_go_through_once():
    # a prompt of 3, four actions of 2 whose last token predicts nothing: 3 + 4 tokens instead of 4 x 4
    forest = Forest.from_completions([[2, 3, 4]], [[[5, 6], [7, 8], [9, 10], [11, 12]]], [0, 0, 0, 0])
    info = TorchLearner(small_llama(), lr=0.0).step(forest, lambda x: x["logprob"].sum())
    assert (info.tokens_forward, info.tokens_flat, info.microbatches) == (7, 16, 1)


def test_a_trajectory_that_ends_inside_another_counts_in_full():
    records = [
        {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "prompt": [2, 3], "turns": [{"action": [4, 5, 6, 7]}]},
        {"schema": "gxpo.rollouts/1", "group": "g", "id": "b", "fork": {"of": "a", "turn": 0, "token": 2},
         "turns": [{"action": []}]},
    ]  # fmt: skip
    info = TorchLearner(small_llama(), lr=0.0).step(Forest.from_records(records), lambda x: x["logprob"].sum())
    assert (info.tokens_forward, info.tokens_flat) == (5, 5 + 3)


def test_a_tree_longer_than_the_limit_is_cut_by_leaves():
    forest = Forest.from_completions([[2, 3, 4]], [[[5, 6, 7]] * 6], [0] * 6)
    packing = Packing(forest, limit=9)
    rows = packing.rows(torch.arange(forest.n_entries))
    assert [row.tokens.numel() for row in rows] == [9, 9]  # the prompt and three leaves' first two tokens
    assert torch.cat([row.entries for row in rows]).sort().values.tolist() == list(range(18))
    assert all(row.tokens[:3].tolist() == [0, 1, 2] for row in rows)


@pytest.mark.parametrize("limit", [1, 10, 64, 1000])
def test_microbatches_keep_to_their_limit(limit):
    forest = random_forest(3)
    batches = Packing(forest, limit=limit).microbatches(torch.arange(forest.n_entries))
    assert all(b.n_stored <= limit or len(b.lengths) == 1 for b in batches)
    assert torch.cat([b.entries for b in batches]).sort().values.tolist() == list(range(forest.n_entries))


@pytest.mark.parametrize(
    ("lengths", "limit", "expected"),
    [
        ([3] * 6, 15, [[3, 3, 3], [3, 3, 3]]),  # and not 15 and 3
        ([6, 3, 3, 3, 1], 12, [[6, 3], [3, 3, 1]]),  # and not 12 and 4
        ([3, 3], 6, [[3, 3]]),
        ([9, 9, 9], 9, [[9], [9], [9]]),
    ],
)
def test_microbatches_are_of_similar_sizes(lengths, limit, expected):
    packing = SimpleNamespace(limit=limit, padded=False, images=None, _pictures_of_row=lambda row: frozenset())
    packing._exceeds_images = lambda *_: False
    packing._greedy = partial(Packing._greedy, packing)
    rows = [Row(torch.zeros(n), torch.zeros(0)) for n in lengths]
    batches = Packing._fill_batches(packing, rows)
    assert [[row.tokens.numel() for row in batch] for batch in batches] == expected


def test_padding_changes_nothing():
    # T31: the same trajectory alone and beside a longer one
    forest = Forest.from_completions([[2, 3], [4, 5, 6, 7, 8, 9, 10]], [[[5, 6]], [[7, 8, 9, 10, 11, 12]]], [0, 0])
    for layout in ("packed", "flat"):
        learner = TorchLearner(copy.deepcopy(MODEL), lr=0.0, layout=layout)
        single_outputs = learner.outputs(forest.select([0]), NAMES)
        together = learner.outputs(forest, NAMES)
        assert all(torch.allclose(single_outputs[n], together[n][:2], rtol=0, atol=1e-12) for n in NAMES)


def test_order_of_trajectories_does_not_matter():
    forest = random_forest(5)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(0))
    learner = TorchLearner(MODEL, lr=0.0, tokens_per_microbatch=40)
    moved, entries = learner.outputs(forest.select(order))["logprob"], forest.entries_of(order)
    assert torch.allclose(moved, learner.outputs(forest)["logprob"][entries], rtol=0, atol=1e-12)


def test_refusals():
    learner = TorchLearner(small_llama(), lr=0.0)
    with pytest.raises(ModelError, match="nothing before it"):
        learner.outputs(Forest.from_completions([[]], [[[5]]], [0]))
    with pytest.raises(ModelError, match="token id 23"):
        learner.outputs(Forest.from_completions([[23]], [[[5]]], [0]))
    with pytest.raises(ModelError, match="positions"):
        learner.outputs(Forest.from_completions([[2] * 256], [[[5]]], [0]))
    with pytest.raises(ModelError, match="vocabulary ids"):
        learner.outputs(Forest.from_completions([[2]], [[[5, -1, 6]]], [0]))
