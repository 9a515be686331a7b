"""ADORA: the card's numbers, the loop, empty sets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import forest_of, part_of, weighted

from gxpo.base.errors import ConfigError


def length_signal_weight(**options):
    return part_of("adora", "length_signal", **options)


def test_card() -> None:
    def of(lengths):
        rows = [("a", r, n) for r, n in zip((1, 0, 0, 0), lengths, strict=True)]
        return weighted("adora", forest_of(rows), {"credit.eps": 0.0})

    assert of((500, 300, 350, 400)) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert of((200, 300, 350, 400)) == pytest.approx([0.15, -0.05, -0.05, -0.05])


row = st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(1, 5), st.booleans(), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(row, min_size=1, max_size=10))
def test_it_equals_a_loop(rows) -> None:
    forest = forest_of([(g, float(r), n, {"compared": c, "truncated": t}) for g, r, n, c, t in rows])
    found = length_signal_weight(otherwise=0.25)(forest, torch.ones(forest.n_entries), {}, 0)
    for i, (g, *_) in enumerate(rows):
        right = [n for h, r, n, c, _ in rows if h == g and c and r]
        wrong = [n for h, r, n, c, t in rows if h == g and c and not r and not t]
        longest = max(right, default=float("-inf"))
        keep = longest > (sum(wrong) / len(wrong) if wrong else float("-inf"))
        assert found[forest.path_of(i)].tolist() == [1.0 if keep else 0.25] * len(forest.path_of(i))


def test_all_right_all_wrong_and_equal_lengths() -> None:
    rows = [("right", 1, 1), ("right", 1, 2), ("wrong", 0, 1), ("wrong", 0, 2), ("even", 1, 2), ("even", 0, 2)]
    forest = forest_of(rows)
    found = length_signal_weight()(forest, torch.ones(forest.n_entries), {}, 0)
    at = [float(found[forest.path_of(r)[0]]) for r in range(len(rows))]
    assert at == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.1])


def test_one_makes_no_difference_and_bad_weights_are_refused() -> None:
    forest = forest_of([("a", 1, 1), ("a", 0, 3)])
    assert weighted("adora", forest, {"weight.length_signal.otherwise": 1.0}) == weighted("grpo", forest)
    for bad in (-0.1, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="otherwise"):
            length_signal_weight(otherwise=bad)
