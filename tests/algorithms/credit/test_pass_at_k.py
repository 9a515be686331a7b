"""Pass@k: the card's numbers, subsets counted out one by one, what the three estimators reduce to."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import GroupRelative, advantage
from gxpo.algorithms.credit.sets import (
    max_second,
    miss_probability,
    pass_at_k,
    set_leave_one_out,
    sloo_minus_one,
    subset_mean,
)
from gxpo.base.errors import ConfigError


def group_of(n: int, c: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(n) < c, torch.zeros(n, dtype=torch.int64)


def test_cards_of_the_analytic_estimator():
    assert subset_mean(*group_of(8, 2), 4).tolist() == pytest.approx([0.522232] * 2 + [-0.174077] * 6, abs=2e-6)
    assert subset_mean(*group_of(8, 1), 4).tolist() == pytest.approx([0.999998] + [-0.142857] * 7, abs=1e-6)
    assert subset_mean(*group_of(4, 1), 1).tolist() == pytest.approx([1.732047] + [-0.577349] * 3, abs=1e-6)
    assert subset_mean(*group_of(8, 5), 4).tolist() == [0.0] * 8
    assert float(1 - miss_probability(torch.tensor(8), torch.tensor(6), 4)) == pytest.approx(0.785714, abs=1e-6)


def test_what_an_attempt_adds_by_arithmetic():
    # 2 right of 8, k 4: of the 35 sets of three others 20 hold no success: 4 * 20 / 35
    right, group = group_of(8, 2)
    assert sloo_minus_one(right.double(), group, 4).tolist() == pytest.approx([80 / 35] * 2 + [0.0] * 6, abs=1e-12)
    # .2 .5 .9, k 2: .9 adds .7 to .2 and .4 to .5, .5 adds .3 to .2 and nothing to .9; means over two sets, times 2
    found = sloo_minus_one(torch.tensor([0.5, 0.9, 0.2], dtype=torch.float64), torch.zeros(3).long(), 2)
    assert found.tolist() == pytest.approx([0.3, 1.1, 0.0], abs=1e-12)


def test_cards_of_the_others():
    assert set_leave_one_out(*group_of(8, 2), 4).tolist() == pytest.approx([0.489796] * 2 + [-0.163265] * 6, abs=1e-6)
    outcome, group = torch.tensor([0.9, 0.5, 0.2, 0.1], dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    assert max_second(outcome, group, scale="none").tolist() == pytest.approx([0.4, 0, 0, 0])
    assert max_second(outcome, group).tolist() == pytest.approx([1.112970, 0, 0, 0], abs=1e-6)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 12))
def test_chances_are_ratios_of_binomials(pool, wrong, k):
    if k > pool:
        return
    wrong = min(wrong, pool)
    expected = math.comb(wrong, k) / math.comb(pool, k)
    assert float(miss_probability(torch.tensor(pool), torch.tensor(wrong), k)) == pytest.approx(expected, rel=1e-11)


def passes(right, k):
    """Of each attempt, the share of the sets of k with it in which somebody is right; the same of all sets."""
    sets = list(itertools.combinations(range(len(right)), k))
    won = {s: float(any(right[i] for i in s)) for s in sets}
    with_i = [statistics.fmean(won[s] for s in sets if i in s) for i in range(len(right))]
    return with_i, list(won.values())


def analytic(right, k):
    """Centred on the mean over all sets, by their population standard deviation."""
    if len(right) < k:
        return [0.0] * len(right)
    with_i, won = passes(right, k)
    spread = statistics.pstdev(won)
    return [(x - statistics.fmean(won)) / (spread + 1e-6) if spread else 0.0 for x in with_i]


def leave_one_out(right, k):
    """Whether i is the only success of a set with it, on average; less the mean of that over the others."""
    n = len(right)
    if n < max(k, 2):
        return [0.0] * n
    sets = list(itertools.combinations(range(n), k))
    a = [statistics.fmean(float(right[i] and sum(right[j] for j in s) == 1) for s in sets if i in s) for i in range(n)]
    return [a[i] - (sum(a) - a[i]) / (n - 1) for i in range(n)]


def added(values, own, k):
    """k times the mean over sets of k - 1 of `values` of what `own` adds to their best."""
    if k == 1:
        return own - statistics.fmean(values)
    return k * statistics.fmean(max(own, *s) - max(s) for s in itertools.combinations(values, k - 1))


GRADED = st.sampled_from([0.0, 0.25, 0.5, 1.0, -1.0, 0.1 + 0.2, 0.3, math.nan])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), GRADED, st.booleans()), min_size=1, max_size=10), st.integers(1, 4))
def test_the_unbiased_one_equals_a_count_over_all_sets(grow, rows, k):
    """Who is not compared is set against all who are, and unscored attempts are nobody's."""
    forest = grow([(g, None if math.isnan(r) else r, [1], {"compared": c}) for g, r, c in rows])
    found = advantage(pass_at_k, kind="sloo_minus_one", k=k)(forest, {}, 0).tolist()
    scored = [i for i, (_, r, _) in enumerate(rows) if not math.isnan(r)]
    for i in scored:
        others = [rows[j][1] for j in scored if j != i and rows[j][2] and rows[j][0] == rows[i][0]]
        peers = [*others, rows[i][1]] if rows[i][2] else others
        if len(peers) < max(k, 2) or max(peers) - min(peers) < 1e-9:
            assert found[i] == 0.0
        else:
            assert found[i] == pytest.approx(added(others, rows[i][1], k), abs=1e-12)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_what_every_set_has_already_adds_exactly_nothing(k):
    group = torch.zeros(5, dtype=torch.int64)
    for values in ([0.7] * 5, [0.1 + 0.2, 0.3, 0.3, 0.3, 0.3], [1 / 3] * 4 + [1.0]):
        found = sloo_minus_one(torch.tensor(values, dtype=torch.float64), group, k).tolist()
        assert found[:4] == [0.0] * 4 and (values[4] < 1) == (found[4] == 0.0)
    assert sloo_minus_one(torch.rand(3), torch.zeros(3).long(), 4).tolist() == [0.0] * 3  # fewer than k


@pytest.mark.parametrize("n", [200, 1000])
def test_large_groups_do_not_overflow(n):
    right, group = group_of(n, 3)
    found = sloo_minus_one(right.double(), group, 64)
    assert found[0] == pytest.approx(64 * math.comb(n - 3, 63) / math.comb(n - 1, 63), rel=1e-10) and found[3] == 0


rows_of = st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(rows_of, st.integers(1, 4), st.sampled_from(["analytic", "leave_one_out"]))
def test_they_equal_a_count_over_all_sets(grow, rows, k, kind):
    forest = grow([(g, float(r), [1], {"success": r, "compared": c}) for g, r, c in rows])
    found = advantage(pass_at_k, kind=kind, k=k)(forest, {}, 0).tolist()
    loop = analytic if kind == "analytic" else leave_one_out
    for g in "ab":
        members = [i for i, (h, _, c) in enumerate(rows) if h == g and c]
        expected = loop([rows[i][1] for i in members], k) if members else []
        assert [found[i] for i in members] == pytest.approx(expected, abs=1e-8)
        by_verdict = {rows[i][1]: found[i] for i in members}
        for i, (h, right, c) in enumerate(rows):  # who is not compared is given what his verdict would have
            if h == g and not c and right in by_verdict:
                assert found[i] == pytest.approx(by_verdict[right], abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.5, 0.9]), st.booleans()), min_size=1, max_size=9)
)
def test_max_second_equals_a_loop(grow, rows):
    forest = grow([(g, r, [1], {"compared": c}) for g, r, c in rows])
    expected = [0.0] * len(rows)
    for g in "ab":
        members = [i for i, (h, _, c) in enumerate(rows) if h == g and c]
        ranked = sorted(members, key=lambda i: -rows[i][1])
        if len(ranked) > 1 and rows[ranked[0]][1] > rows[ranked[1]][1]:
            gap = rows[ranked[0]][1] - rows[ranked[1]][1]
            expected[ranked[0]] = gap / (statistics.stdev(rows[i][1] for i in members) + 1e-6)
    assert advantage(pass_at_k, kind="max_second")(forest, {}, 0).tolist() == pytest.approx(expected)


def test_with_one_attempt_they_are_grpo_and_rloo(grow):
    forest = grow([(g, r, [1], {"success": bool(r)}) for g, r in zip("aaaabbb", (1, 0, 0, 1, 0, 0, 1), strict=True)])
    analytic_one = advantage(pass_at_k, k=1)(forest, {}, 0).tolist()
    assert analytic_one == pytest.approx(GroupRelative(ddof=0)(forest, {}, 0).tolist(), abs=1e-12)
    rloo = gxpo.method("rloo").advantages(forest).tolist()
    for kind in ("leave_one_out", "sloo_minus_one"):
        assert advantage(pass_at_k, kind=kind, k=1)(forest, {}, 0).tolist() == pytest.approx(rloo)


@pytest.mark.parametrize("n", [2, 5, 300])
def test_sums_are_zero_and_groups_without_contrast_have_none(n):
    for c in {0, 1, n // 2, n - 1, n}:
        for k in {1, 2, min(n, 64), n}:
            for estimate in (subset_mean, set_leave_one_out):
                found = estimate(*group_of(n, c), k)
                assert bool(found.isfinite().all()) and abs(float(found.sum())) < 1e-8
                assert c not in (0, n) or bool((found == 0).all())
    assert subset_mean(*group_of(3, 1), 4).tolist() == set_leave_one_out(*group_of(3, 1), 4).tolist() == [0.0] * 3


def test_the_methods_and_the_options(grow):
    forest = grow([("a", float(i < 2), [1], {"success": i < 2}) for i in range(8)])
    passk, pkpo = (gxpo.method(name, {"credit.k": 4}).advantages(forest).tolist() for name in ("passk", "pkpo"))
    assert passk == pytest.approx([0.522232] * 2 + [-0.174077] * 6, abs=2e-6)
    assert pkpo == pytest.approx([80 / 35] * 2 + [0.0] * 6, abs=1e-12)
    port = gxpo.method("pkpo", {"credit.k": 4, "credit.kind": "leave_one_out"}).advantages(forest).tolist()
    assert port == pytest.approx([0.489796] * 2 + [-0.163265] * 6, abs=1e-6)
    unscored = grow([("a", float(i < 2) if i < 8 else None, [1]) for i in range(9)])
    assert gxpo.method("pkpo").advantages(unscored).tolist() == [*gxpo.method("pkpo").advantages(forest).tolist(), 0.0]
    with pytest.raises(ConfigError, match=r"credit\.k is 0"):
        advantage(pass_at_k, k=0)
    with pytest.raises(ConfigError, match=r"credit\.kind"):
        advantage(pass_at_k, kind="best")


def test_who_is_not_compared_has_nothing_where_the_compared_agree():
    group, last = torch.zeros(3, dtype=torch.int64), torch.tensor([True, True, False])
    for k in (1, 2):
        assert subset_mean(torch.tensor([False, False, True]), group, k, last).tolist() == [0, 0, 0]
        assert set_leave_one_out(torch.tensor([True, True, False]), group, k, last).tolist() == [0, 0, 0]


def test_of_nobody_there_is_nothing():
    nothing = torch.zeros(0, dtype=torch.int64)
    assert miss_probability(nothing, nothing, 2).shape == (0,)
