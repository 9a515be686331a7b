"""Advantages over sets of attempts: pass@k, polychromic sets, right-wrong pairs, all counted out."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.test_bonus import spoken as forest_of

import gxpo
from gxpo.algorithms.credit import GroupRelative, advantage, group_relative
from gxpo.algorithms.credit.sets import (
    by_sets,
    max_second,
    miss_probability,
    pairwise_auc,
    pass_at_k,
    same_actions,
    set_leave_one_out,
    set_relative,
    sloo_minus_one,
    subset_mean,
)
from gxpo.base.errors import ConfigError, GxpoError


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
    actual = sloo_minus_one(torch.tensor([0.5, 0.9, 0.2], dtype=torch.float64), torch.zeros(3).long(), 2)
    assert actual.tolist() == pytest.approx([0.3, 1.1, 0.0], abs=1e-12)


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
    actual = advantage(pass_at_k, kind="sloo_minus_one", k=k)(forest, {}, 0).tolist()
    scored = [i for i, (_, r, _) in enumerate(rows) if not math.isnan(r)]
    for i in scored:
        others = [rows[j][1] for j in scored if j != i and rows[j][2] and rows[j][0] == rows[i][0]]
        peers = [*others, rows[i][1]] if rows[i][2] else others
        if len(peers) < max(k, 2) or max(peers) - min(peers) < 1e-9:
            assert actual[i] == 0.0
        else:
            assert actual[i] == pytest.approx(added(others, rows[i][1], k), abs=1e-12)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_what_every_set_has_already_adds_exactly_nothing(k):
    group = torch.zeros(5, dtype=torch.int64)
    for values in ([0.7] * 5, [0.1 + 0.2, 0.3, 0.3, 0.3, 0.3], [1 / 3] * 4 + [1.0]):
        actual = sloo_minus_one(torch.tensor(values, dtype=torch.float64), group, k).tolist()
        assert actual[:4] == [0.0] * 4 and (values[4] < 1) == (actual[4] == 0.0)
    assert sloo_minus_one(torch.rand(3), torch.zeros(3).long(), 4).tolist() == [0.0] * 3  # fewer than k


@pytest.mark.parametrize("n", [200, 1000])
def test_large_groups_do_not_overflow(n):
    right, group = group_of(n, 3)
    actual = sloo_minus_one(right.double(), group, 64)
    assert actual[0] == pytest.approx(64 * math.comb(n - 3, 63) / math.comb(n - 1, 63), rel=1e-10) and actual[3] == 0


rows_of = st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(rows_of, st.integers(1, 4), st.sampled_from(["analytic", "leave_one_out"]))
def test_they_equal_a_count_over_all_sets(grow, rows, k, kind):
    forest = grow([(g, float(r), [1], {"success": r, "compared": c}) for g, r, c in rows])
    actual = advantage(pass_at_k, kind=kind, k=k)(forest, {}, 0).tolist()
    loop = analytic if kind == "analytic" else leave_one_out
    for g in "ab":
        members = [i for i, (h, _, c) in enumerate(rows) if h == g and c]
        expected = loop([rows[i][1] for i in members], k) if members else []
        assert [actual[i] for i in members] == pytest.approx(expected, abs=1e-8)
        by_verdict = {rows[i][1]: actual[i] for i in members}
        for i, (h, right, c) in enumerate(rows):  # who is not compared is given what his verdict would have
            if h == g and not c and right in by_verdict:
                assert actual[i] == pytest.approx(by_verdict[right], abs=1e-12)


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
                actual = estimate(*group_of(n, c), k)
                assert bool(actual.isfinite().all()) and abs(float(actual.sum())) < 1e-8
                assert c not in (0, n) or bool((actual == 0).all())
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


def test_uncompared_attempts_beside_equal_ones_have_nothing():
    group, last = torch.zeros(3, dtype=torch.int64), torch.tensor([True, True, False])
    for k in (1, 2):
        assert subset_mean(torch.tensor([False, False, True]), group, k, last).tolist() == [0, 0, 0]
        assert set_leave_one_out(torch.tensor([True, True, False]), group, k, last).tolist() == [0, 0, 0]


def test_an_empty_batch_has_no_pass_at_k():
    nothing = torch.zeros(0, dtype=torch.int64)
    assert miss_probability(nothing, nothing, 2).shape == (0,)


def score(members):
    """f of a set of (reward, key)."""
    return statistics.fmean(r for r, _ in members) * len({k for _, k in members}) / len(members)


def shared(members, sets):
    """Each member's mean score over the sets that hold it, less the mean over all."""
    scores = [score([members[i] for i in s]) for s in sets]
    holding = [[x for x, s in zip(scores, sets, strict=True) if i in s] for i in range(len(members))]
    return [statistics.fmean(x) - statistics.fmean(scores) for x in holding]


def test_the_cards_sets_pin_the_loop():
    members = [(1, "x"), (0, "y"), (1, "x"), (1, "x"), (0, "x"), (0, "y")]
    assert [score(members[i : i + 2]) for i in (0, 2, 4)] == [0.5, 0.5, 0.0]
    actual = shared(members, [(0, 1), (2, 3), (4, 5)])
    assert actual == pytest.approx([0.166667] * 2 + [0.166667] * 2 + [-0.333333] * 2, abs=1e-6)


member = st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.4, 1.0]), st.integers(0, 2), st.booleans())


@settings(max_examples=80, deadline=None)
@given(st.lists(member, min_size=1, max_size=9), st.integers(1, 5))
def test_it_equals_a_count_over_all_sets(rows, size):
    outcome, group = (torch.tensor([row[i] for row in rows]) for i in (1, 2))
    group = torch.tensor(["ab".index(row[0]) for row in rows])
    key, where = torch.tensor([row[2] for row in rows]), torch.tensor([row[3] for row in rows])
    actual = set_relative(outcome.double(), group, key, size, where)
    for g in "ab":
        place = [i for i, row in enumerate(rows) if row[0] == g and row[3]]
        members = [(rows[i][1], rows[i][2]) for i in place]
        few = len(members) <= size
        sets = [] if few else list(itertools.combinations(range(len(members)), size))
        expected = [0.0] * len(members) if few else shared(members, sets)
        assert actual[place].tolist() == pytest.approx(expected, abs=1e-7)
    assert bool((actual[~where] == 0).all())


def test_a_wrong_attempt_that_differs_can_gain(grow):
    records = grow([("a", r, [2]) for r in (1.0, 1.0, 1.0, 0.0, 0.0, 0.0)]).to_records()
    for i, token in enumerate((3, 3, 3, 4, 3, 3)):
        records[i]["turns"][0]["action"] = [3, token]
    actual = advantage(by_sets, size=2)(gxpo.Forest.from_records(records), {}, 0)[::2].tolist()
    assert actual[3] > actual[4] == actual[5] and sum(actual) == pytest.approx(0, abs=1e-12)
    # among sets of two: with the odd one d = 1, else .5; f = .5 for 1 and 0 with the odd one, .5 for 1, 1 ...
    assert actual[3] == pytest.approx(statistics.fmean([0.5] * 3 + [0.0] * 2) - _mean_of_all())


def _mean_of_all():
    members = [(1, "x")] * 3 + [(0, "y")] + [(0, "x")] * 2
    return statistics.fmean(score(pair) for pair in itertools.combinations(members, 2))


@pytest.mark.parametrize(("size", "factor"), [(1, 1.0), (2, 3 / 8), (3, 2 / 12)])
def test_where_all_differ_it_is_dr_grpo(size, factor):
    outcome, group = torch.tensor([1.0, 0.5, 0.0, 0.0, 1.0]), torch.zeros(5, dtype=torch.int64)
    actual = set_relative(outcome, group, torch.arange(5), size)
    assert actual.tolist() == pytest.approx([factor * (r - 0.5) for r in outcome.tolist()])  # (n - size) / size (n - 1)


def test_equal_rewards_have_credit_only_where_some_are_the_same():
    one, group = torch.ones(5, dtype=torch.float64), torch.zeros(5, dtype=torch.int64)
    assert bool((set_relative(one / 3, group, torch.arange(5), 3) == 0).all())
    assert bool((set_relative(one / 3, group, torch.zeros(5).long(), 3) == 0).all())
    assert set_relative(one, group, torch.tensor([0, 0, 0, 0, 1]), 3)[4] > 0
    assert advantage(by_sets).learns_from_equal_groups


def test_order_does_not_matter():
    g = torch.Generator().manual_seed(1)
    outcome = torch.rand(30, generator=g, dtype=torch.float64)
    group, key = (torch.randint(0, 3, (30,), generator=g) for _ in range(2))
    order = torch.randperm(30, generator=g)
    actual = set_relative(outcome, group, key, 3)
    assert torch.allclose(set_relative(outcome[order], group[order], key[order], 3), actual[order], atol=1e-14)


def test_what_makes_attempts_the_same(grow):
    rows = [("a", r, [2], {"info": {"answer": x}}) for r, x in ((1.0, "4"), (0.0, "5"), (1.0, "4"))]
    records = grow(rows).to_records()
    records[2]["turns"][0]["action"] = [9, 9]
    forest = gxpo.Forest.from_records(records)
    assert same_actions(forest).tolist() == [0, 0, 1]
    by_actions = set_relative(forest.outcome, torch.zeros(3).long(), torch.tensor([0, 0, 1]), 2)
    by_answers = set_relative(forest.outcome, torch.zeros(3).long(), torch.tensor([0, 1, 0]), 2)
    assert torch.equal(advantage(by_sets, size=2)(forest, {}, 0)[::2], by_actions)
    assert torch.equal(advantage(by_sets, size=2, identity="info.answer")(forest, {}, 0)[::2], by_answers)
    unknown = advantage(by_sets, size=2, identity="info.nothing")(forest, {}, 0)[::2]  # nobody is like another
    assert torch.equal(unknown, set_relative(forest.outcome, torch.zeros(3).long(), torch.arange(3), 2))


def test_actions_are_told_apart_by_every_token_and_its_place(grow):
    wrote = [[*s] for n in range(1, 5) for s in itertools.product((0, 1, 2), repeat=n)]
    records = grow([("a", 0.0, [len(tokens)]) for tokens in wrote + wrote]).to_records()
    for record, tokens in zip(records, wrote + wrote, strict=True):
        record["turns"][0]["action"] = tokens
    actual = same_actions(gxpo.Forest.from_records(records)).tolist()
    assert len(set(actual)) == len(wrote) and actual[: len(wrote)] == actual[len(wrote) :]


def test_options_and_texts(grow):
    with pytest.raises(ConfigError, match=r"credit\.size is 0"):
        advantage(by_sets, size=0)
    text = {"schema": "gxpo.rollouts/1", "group": "a", "reward": 1.0, "turns": [{"action_text": "yes"}]}
    forest = gxpo.Forest.from_records([text | {"id": name} for name in "xy"])
    with pytest.raises(GxpoError, match="set_relative needs token ids"):
        advantage(by_sets)(forest, {}, 0)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_rewards_and_keys_that_cross(size):
    rewards, keys = [1.0, 0.4, 0.0, 1.0, 0.4, 0.0, 0.4], [0, 0, 1, 1, 2, 2, 2]
    expected = shared(list(zip(rewards, keys, strict=True)), list(itertools.combinations(range(7), size)))
    actual = set_relative(torch.tensor(rewards).double(), torch.zeros(7).long(), torch.tensor(keys), size)
    assert actual.tolist() == pytest.approx(expected, abs=1e-7)


def test_unknown_keys_equal_no_key_of_another_group(grow):
    # b: three that differ, so Dr. GRPO times 1 / (2 * 2): (1 - 1/3) / 4 and -(1/3) / 4
    rows = [("a", r, [1], {"info": {"answer": x}}) for r, x in ((1.0, "4"), (0.0, "5"), (1.0, "4"))]
    both = grow([*rows, *(("b", r, [1]) for r in (1.0, 0.0, 0.0))])
    part = advantage(by_sets, size=2, identity="info.answer")
    expected = [*part(grow(rows), {}, 0).tolist(), 1 / 6, -1 / 12, -1 / 12]
    assert part(both, {}, 0).tolist() == pytest.approx(expected, abs=1e-12)


def test_an_empty_batch_has_no_set_advantages():
    nothing = torch.zeros(0, dtype=torch.int64)
    assert set_relative(nothing.double(), nothing, nothing, 2).shape == (0,)


ONE = torch.zeros(3, dtype=torch.int64)


def test_the_cards_numbers():
    # sigmoid(-.4) / .5 = .802625; sigmoid(.4) / .5 = 1.197375; without the 1 / tau half of it
    lp, right = torch.tensor([-0.2, -0.6, -0.4], dtype=torch.float64), torch.tensor([True, True, False])
    actual = pairwise_auc(lp, right, ONE, tau=0.5)
    assert actual.tolist() == pytest.approx([0.802625, 1.197375, -2.0], abs=1e-6)
    assert (0.5 * actual).tolist() == pytest.approx([0.401312, 0.598688, -1.0], abs=1e-6)


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([None, False, True]), st.floats(-4, 0), st.booleans()),
    min_size=1,
    max_size=9,
)


@settings(max_examples=80, deadline=None)
@given(rows=ROWS, tau=st.sampled_from([0.1, 0.6, 3.0]))
def test_it_equals_a_loop_over_pairs(rows, tau):
    scored = [(g, v if v is None else float(v), lp, c) for g, v, lp, c in rows]
    forest = forest_of([(g, r, [0.5 * lp, 1.5 * lp], {"compared": c}) for g, r, lp, c in scored])
    actual = gxpo.method("capo_calibration", {"credit.tau": tau}).advantages(forest)
    for i, (g, v, lp, _) in enumerate(rows):
        expected = 0.0
        for j, (h, u, m, c) in enumerate(rows):
            if None in (u, v) or h != g or u == v or not c or i == j:
                continue
            ahead = lp - m if v else m - lp
            pull = 1 / (tau * (1 + math.exp(ahead / tau)))
            expected += pull if v else -pull
        assert actual[2 * i].item() == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.floats(-9, 0)), min_size=1, max_size=9), st.floats(-5, 5)
)
def test_sums_signs_shifts_and_groups_of_one_label(rows, shift):
    g, right = torch.tensor([g for g, *_ in rows]), torch.tensor([v for _, v, _ in rows])
    lp = torch.tensor([x for *_, x in rows], dtype=torch.float64)
    actual = pairwise_auc(lp, right, g)
    assert bool((actual[right] >= 0).all() and (actual[~right] <= 0).all())
    assert pairwise_auc(lp + shift, right, g).tolist() == pytest.approx(actual.tolist(), abs=1e-9)
    for k in range(3):
        is_own = g == k
        assert float(actual[is_own].sum()) == pytest.approx(0.0, abs=1e-9)
        if bool(right[is_own].all()) or not bool(right[is_own].any()):
            assert bool((actual[is_own] == 0).all())
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    assert pairwise_auc(lp[order], right[order], g[order]).tolist() == pytest.approx(actual[order].tolist(), abs=1e-12)


def test_of_high_temperature_it_is_the_outcome_less_the_mean():
    lp, right = torch.tensor([-0.2, -0.6, -0.4]), torch.tensor([True, True, False])
    target = group_relative(right.double(), ONE, scale="none")
    tau = 1e7
    assert (2 * tau / 3 * pairwise_auc(lp, right, ONE, tau=tau)).tolist() == pytest.approx(target.tolist(), abs=1e-6)


def test_confident_mistakes_and_unsure_successes_weigh_most():
    right = torch.tensor([True, True, False, False])
    actual = pairwise_auc(torch.tensor([-0.1, -2.0, -0.1, -2.0]), right, torch.zeros(4).long())
    assert actual[1] > actual[0] > 0 and actual[2] < actual[3] < 0


def test_tau_is_above_zero_and_empty_is_fine():
    with pytest.raises(ConfigError, match=r"credit\.tau"):
        advantage(pairwise_auc, tau=0.0)
    nothing = torch.zeros(0)
    assert pairwise_auc(nothing, nothing.bool(), nothing.long()).shape == (0,)


def test_verdicts_go_first_and_empty_answers_are_in_no_pair():
    # equal log-probs: the pull of a pair is sigmoid(0) / .6 = .833333; of one token each, the last with none to train
    rows = [("g", 0.0, [-1.0], {"success": True}), ("g", 1.0, [-1.0], {"success": False}), ("g", 0.0, [-1.0], {})]
    records = forest_of(rows).to_records()
    records[2]["turns"][0]["trainable"] = [False]
    actual = gxpo.method("capo_calibration").advantages(gxpo.Forest.from_records(records))
    assert actual[:2].tolist() == pytest.approx([0.833333, -0.833333], abs=1e-6)
