"""D3S: the card's numbers, every subset tried, tokens by a loop, the schedule."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, part_of

import gxpo
from gxpo.algorithms.weighting.token_curves import max_variance
from gxpo.base.errors import ConfigError, MissingSignal

F64 = torch.float64


def down_sampling(**options):
    return part_of("d3s", "down_sampling", **options)


def column(*x):
    return torch.tensor(x, dtype=F64)


def test_card() -> None:
    a = column(1.5, 0.9, 0.2, -0.1, -0.8, -1.7)
    is_kept = a[max_variance(a, 4, a < 9)]
    assert is_kept.tolist() == [1.5, 0.9, -0.8, -1.7]
    assert statistics.pvariance(is_kept.tolist()) == pytest.approx(1.646875)


VALUES = st.lists(st.integers(-20, 20).map(lambda x: x / 8), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(VALUES, st.integers(1, 8))
def test_no_subset_has_a_greater_variance(values, k):
    k = min(k, len(values))
    x = column(*values)
    is_kept = x[max_variance(x, k, x < 99)].tolist()
    best = max(statistics.pvariance(s) for s in itertools.combinations(values, k))
    assert len(is_kept) == k and statistics.pvariance(is_kept) == pytest.approx(best, abs=1e-12)
    shifted = 3 * x + 7
    assert statistics.pvariance(shifted[max_variance(shifted, k, x < 99)].tolist()) == pytest.approx(9 * best, abs=1e-9)


def test_of_equal_subsets_the_one_with_fewest_small_values() -> None:
    """Three and three, of which three: one and two, or two and one."""
    is_kept = max_variance(column(0.1, 0.1, 0.1, 0.3, 0.3, 0.3), 3, column(*range(6)) < 9)
    assert is_kept.tolist() == [True, False, False, False, True, True]


def test_who_does_not_count_is_kept_where_it_lies_as_far_out() -> None:
    x = column(-2, 0, 0.1, 2, -3, 1.9, 2.0)
    where = torch.tensor([True] * 4 + [False] * 3)
    assert max_variance(x, 2, where).tolist() == [True, False, False, True, True, False, True]


ROW = st.tuples(st.sampled_from([-1.0, -0.25, 0.0, 0.5, 1.0]), st.integers(1, 3))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ROW, min_size=1, max_size=6), st.sampled_from([0.3, 0.5, 1.0]), st.sampled_from([0.2, 0.5, 1.0]), st.data()
)
def test_rows_then_tokens_equal_a_loop(rows, of_rows, of_tokens, data):
    forest = forest_of([("a", 1.0, n) for _, n in rows])
    n = forest.n_entries
    entropy = data.draw(st.lists(st.sampled_from([0.1, 0.4, 0.9, 2.0]), min_size=n, max_size=n))
    credit = [a for a, size in rows for _ in range(size)]
    owner = [i for i, (_, size) in enumerate(rows) for _ in range(size)]
    k = math.ceil(of_rows * len(rows) - 1e-9)
    is_kept = max_variance(column(*(a for a, _ in rows)), k, torch.ones(len(rows), dtype=torch.bool)).tolist()
    kept_tokens = [i for i in range(n) if is_kept[owner[i]]]
    chosen = sorted(kept_tokens, key=lambda i: (-abs(credit[i]) * entropy[i], i))[
        : math.ceil(of_tokens * len(kept_tokens) - 1e-9)
    ]
    part = down_sampling(rows=of_rows, rows_end=1.0, tokens=of_tokens, tokens_end=1.0)
    weights = part(forest, column(*credit), {"entropy": column(*entropy)}, 0)
    assert sum(is_kept) == k
    assert weights.tolist() == pytest.approx([len(rows) / k if i in chosen else 0.0 for i in range(n)])


def test_shares_relax_over_the_run() -> None:
    shares = {"rows": 0.25, "rows_end": 0.75, "tokens": 0.1, "tokens_end": 0.9}
    part, outside = down_sampling(**shares, total_steps=10), down_sampling(**shares)
    forest, even = forest_of(group_of(1, 0, 1, 0, n=2)), torch.ones(8, dtype=F64)
    credit = column(1, 1, -1, -1, 0.5, 0.5, -0.5, -0.5)

    def sizes(of):
        return [int((of(forest, credit, {"entropy": even}, s) > 0).sum()) for s in (0, 5, 10, 99)]

    assert sizes(part) == [1, 2, 6, 6]  # of 1, 2, 3 rows of 2 tokens: .1, .5, .9 of them, rounded up
    assert sizes(outside) == [1, 1, 1, 1]
    filled = gxpo.method("d3s", {f"weight.down_sampling.{k}": v for k, v in shares.items()}).fill(total_steps=10)
    assert sizes(filled.weights["down_sampling"]) == sizes(part)


def test_a_share_of_one_keeps_every_rollout_at_weight_one() -> None:
    rows = [("a", 1.0, 2), ("a", 0.0, 1), ("a", 1.0, 1, {"compared": False})]
    credit, entropy = column(1, 1, -1, 0.1), column(0.3, 0.2, 0.4, 5.0)
    everything = down_sampling(rows=1.0, tokens=1.0)(forest_of(rows), credit, {"entropy": entropy}, 0)
    assert everything.tolist() == [1, 1, 1, 1]
    half = down_sampling(rows=0.5, tokens=1.0)(forest_of(rows), credit, {"entropy": entropy}, 0)
    assert half.tolist() == [2, 2, 0, 0]  # one of two rows; .1 is not as far out as 1
    none = forest_of([("a", 1.0, 1, {"compared": False})])
    assert down_sampling()(none, column(1.0), {"entropy": column(1.0)}, 0).tolist() == [1.0]


def test_what_is_wrong_is_said() -> None:
    for bad in ({"rows": 0.0}, {"tokens_end": 1.5}, {"total_steps": 0}):
        with pytest.raises(ConfigError, match="down_sampling"):
            down_sampling(**bad)
    forest = forest_of(group_of(1, 0))
    with pytest.raises(MissingSignal, match="nan for 1 of 2"):
        down_sampling()(forest, column(1, -1), {"entropy": column(1, math.nan)}, 0)
