"""Weights by entropy, novelty, reference perplexity and disagreement: the cards' numbers, loops, bounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of

import gxpo
from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.weighting.token_curves import bonus, plausible, relative_entropy, stretched
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.forest.forest import Forest

F64 = torch.float64
ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 1.0]), st.floats(-4, -0.01), st.booleans()),
    min_size=1,
    max_size=8,
)


def novelty_weight(**options):
    return part_of("xrpo", "novelty", **options)


def relative_entropy_weight(**options):
    return part_of("edge_grpo", "relative_entropy", **options)


def reference_perplexity_weight(**options):
    return part_of("capo_calibration", "reference_perplexity", **options)


def disagreement_weight(**options):
    return part_of("tw_grpo", "disagreement", **options)


def column(*x):
    return torch.tensor(x, dtype=F64)


def forest_of(rows, **fields):
    """(group, reward, anything, compared) of two-token answers."""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": g, "id": f"t{i}", "prompt": [1], "reward": r, "compared": c}
            | {"turns": [{"action": [5, 6], "logprob": [-1.0, -1.0], **fields}]}
            for i, (g, r, _, c) in enumerate(rows)
        ]
    )


def tokens(values):
    """[P]: two tokens of each answer, around its value."""
    return torch.tensor([v + d for v in values for d in (-0.25, 0.25)], dtype=F64)


# ---------------------------------------------------------------- entropy
def test_the_cards_numbers_of_edge_grpo():
    # GRPO with eps 1e-4: 1.4997 -.4999 x3; .5 / .2 = 2.5, .5 / .4, .5 / .6, .5 / .8
    forest = forest_of([("g", r, 0, True) for r in (1.0, 0.0, 0.0, 0.0)])
    m = gxpo.method("edge_grpo@paper")
    credit = m.advantages(forest)
    entropy = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=F64).repeat_interleave(2)
    weights = credit * m.token_weights(forest, credit, {"entropy": entropy})
    assert weights[::2].tolist() == pytest.approx([3.749250, -0.624875, -0.416583, -0.312438], abs=1e-6)
    assert m.needs == ("entropy",)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_entropy_equals_a_loop(rows):
    forest, entropies = forest_of(rows), [abs(v) for *_, v, _ in rows]
    weights = relative_entropy_weight()(forest, torch.ones(2 * len(rows)), {"entropy": tokens(entropies)}, 0)
    peers = [h for h, (*_, c) in zip(entropies, rows, strict=True) if c]
    for i, h in enumerate(entropies):
        expected = min(max(sum(peers) / len(peers) / h, 0.1), 10.0) if peers else 1.0
        assert weights[2 * i : 2 * i + 2].tolist() == pytest.approx([expected] * 2)


def test_the_most_certain_answer_has_the_greatest_weight():
    everyone, one = torch.ones(3).bool(), torch.zeros(3).long()
    assert relative_entropy(column(0.7, 0.7, 0.7), one, everyone).tolist() == pytest.approx([1.0] * 3)
    assert relative_entropy(column(0.0, 0.0, 0.0), one, everyone).tolist() == [1.0] * 3
    assert relative_entropy(column(1e-7, -1e-8, 4e-7), one, everyone).tolist() == [1.0] * 3  # 0 but for rounding
    assert float(relative_entropy(column(-1e-8, 1.0, 200.0), one, everyone)[0]) == 10.0
    assert relative_entropy(column(0.0, 1.0, 200.0), one, everyone).tolist() == pytest.approx([10.0, 10.0, 67 / 200])
    free = relative_entropy(column(1.0, 3.0, 8.0), one, everyone, min_weight=0.0, max_weight=math.inf)
    assert free.tolist() == pytest.approx([4.0, 4 / 3, 0.5])


def test_untrained_tokens_are_in_no_mean():
    forest = forest_of([("g", 1.0, 0, True), ("g", 0.0, 0, True)], trainable=[True, False])
    weights = relative_entropy_weight()(forest, torch.ones(4), {"entropy": column(1.0, math.nan, 3.0, 99.0)}, 0)
    assert weights.tolist() == pytest.approx([2.0, 2.0, 2 / 3, 2 / 3])
    with pytest.raises(MissingSignal, match="entropy is nan for 1 of 2"):
        relative_entropy_weight()(forest, torch.ones(4), {"entropy": column(math.nan, 0.0, 3.0, 9.0)}, 0)


# ---------------------------------------------------------------- novelty
def test_the_cards_numbers_of_xrpo():
    # eta = 1.252323 .839457 1.025315 .927743; 2.5 (1 - .839457) = .401357 <= .5
    forest = forest_of([("g", r, 0, True) for r in (1.0, 1.0, 0.0, 0.0)])
    credit = GroupRelative(ddof=0, eps=0.0)(forest, {}, 0)
    signals = {"proximal_logprob": tokens((-0.2, -0.6, -0.4, -0.5))}
    weights = credit * novelty_weight()(forest, credit, signals, 0)
    assert weights[::2].tolist() == pytest.approx([1.0, 1.401357, -1.0, -1.0], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([0.2, 1.0, 3.0]), st.sampled_from([0.0, 2.5]), st.sampled_from([0.0, 0.5, 2.0]))
def test_novelty_equals_a_loop(rows, size, strength, cap):
    forest = forest_of(rows)
    credit = torch.tensor([x for i, (_, r, *_) in enumerate(rows) for x in ((r - 0.5) * size, (i % 3 - 1) * size)])
    signals = {"proximal_logprob": tokens([s for *_, s, _ in rows])}
    weights = novelty_weight(strength=strength, bound=cap)(forest, credit, signals, 0)
    for i, (g, r, s, _) in enumerate(rows):
        peers = [t for h, _, t, c in rows if h == g and c]
        eta = math.exp(s - sum(peers) / len(peers)) if peers else 1.0
        for p in (2 * i, 2 * i + 1):
            a = float(credit[p])
            sharpened = a + min(max(strength * (1 - eta), 0), cap * a) if r == 1 and a > 0 else a
            assert float(weights[p]) * a == pytest.approx(sharpened, abs=1e-9)
            assert 1 <= float(weights[p]) <= 1 + cap


def test_only_rare_correct_answers_above_their_group_gain():
    credit, eta = column(1, 1, -1, 0, 1e-9), column(0.5, 1.5, 0.5, 0.5, 0.5)
    rarity = (1 - eta).clamp_min(0)
    weights = torch.where(credit > 0, bonus(rarity, credit, strength=2.5), 1.0)  # `sign: positive`
    assert weights.tolist() == [1.5, 1.0, 1.0, 1.0, 1.5]
    assert bonus(0 * rarity, credit, strength=2.5).tolist() == [1.0] * 5


# ---------------------------------------------------------------- reference perplexity
@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_the_mask_of_capo_equals_a_loop(rows):
    forest = forest_of(rows)
    signals = {"reference_logprob": tokens([s for *_, s, _ in rows])}
    weights = reference_perplexity_weight()(forest, torch.ones(2 * len(rows)), signals, 0)
    for i, (_, r, s, _) in enumerate(rows):
        is_kept = math.exp(-s) <= 2.5 if r == 1 else math.exp(-s) >= 1.05
        assert weights[2 * i : 2 * i + 2].tolist() == [float(is_kept)] * 2


def test_bounds_are_kept_and_the_mask_changes_no_credit():
    right = torch.tensor([True, True, False, False])
    assert plausible(column(2.5, 2.51, 1.05, 1.04), right).tolist() == [1.0, 0.0, 1.0, 0.0]
    m, rows = gxpo.method("capo_calibration"), [("g", r, 0, True) for r in (1.0, 0.0)]
    forest = forest_of(rows)
    far = torch.full((4,), -9.0, dtype=F64)
    assert m.needs == ("reference_logprob",)
    credit = m.advantages(forest)
    assert credit.tolist() == pytest.approx([0.5 / 0.6] * 2 + [-0.5 / 0.6] * 2)
    assert m.token_weights(forest, credit, {"reference_logprob": far}).tolist() == [0.0, 0.0, 1.0, 1.0]


# ---------------------------------------------------------------- disagreement
@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([0.0, 1.0, 1.4]))
def test_disagreement_equals_a_loop(rows, alpha):
    forest, x = forest_of(rows), tokens([s for *_, s, _ in rows])
    weights = disagreement_weight(alpha=alpha)(forest, torch.ones(len(x)), {"disagreement": x}, 0)
    for i, (g, *_) in enumerate(rows):
        peers = [float(x[2 * j + k]) for j, (h, *_, c) in enumerate(rows) for k in (0, 1) if h == g and c]
        for p in (2 * i, 2 * i + 1):
            expected = 1.0
            if peers:
                unit = (float(x[p]) - min(peers)) / (max(peers) - min(peers))
                expected = 1 + (alpha - 1) * min(max(unit, 0), 1)
            assert float(weights[p]) == pytest.approx(expected)


def test_where_nothing_disagrees_all_tokens_weigh_one():
    everyone, group = torch.ones(3).bool(), torch.tensor([0, 0, 1])
    assert stretched(torch.zeros(3), group, everyone).tolist() == [1.0] * 3
    weights = stretched(column(1, 3, 7), group, everyone, alpha=1.4)
    assert weights.tolist() == pytest.approx([1.0, 1.4, 1.0])
    forest = forest_of([("g", 1.0, 0, True)], trainable=[True, False])
    assert disagreement_weight()(forest, torch.ones(2), {"disagreement": column(3, math.nan)}, 0).tolist() == [1.0, 1.0]
    with pytest.raises(MissingSignal, match="disagreement is nan"):
        disagreement_weight()(forest, torch.ones(2), {"disagreement": column(math.nan, 0)}, 0)


# ---------------------------------------------------------------- options
@pytest.mark.parametrize(
    ("part", "wrong", "message"),
    [
        (relative_entropy_weight, {"min_weight": 1.5}, "relative_entropy"),
        (relative_entropy_weight, {"max_weight": 0.5}, "relative_entropy"),
        (novelty_weight, {"bound": -0.1}, "novelty"),
        (reference_perplexity_weight, {"low": 0.5}, "reference_perplexity"),
        (disagreement_weight, {"alpha": -1.0}, "disagreement"),
    ],
)
def test_bad_options_say_which(part, wrong, message):
    with pytest.raises(ConfigError, match=rf"weight\.{message}"):
        part(**wrong)


def test_without_trajectories_there_is_nothing():
    empty, nothing = Forest.from_records([]), torch.zeros(0, dtype=F64)
    names = ("entropy", "proximal_logprob", "reference_logprob", "disagreement")
    for part in (relative_entropy_weight(), novelty_weight(), reference_perplexity_weight(), disagreement_weight()):
        assert part(empty, nothing, dict.fromkeys(names, nothing), 0).shape == (0,)
