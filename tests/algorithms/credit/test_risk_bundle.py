"""RiskPO: the card's numbers, sheets and bundles, the loop, tracked quantiles and their resume."""

from __future__ import annotations

import json
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit.risk_bundle import RiskBundle, mixed_value_at_risk, sheets
from gxpo.base.errors import ConfigError


def test_card():
    actual = mixed_value_at_risk(torch.arange(6.0), 1.0, 4.0, (0.2, 0.8), mix=1.5)
    assert actual.tolist() == pytest.approx([-4.999982, -1.999997, -1.333331, -0.666666, 0, 0], abs=2e-6)
    # without the constant q_a - q_b = -3 of the middle part: 3 / .6 / 2.5 = 2 more for all
    low = mixed_value_at_risk(torch.arange(6.0), 1.0, 4.0, (0.2, 0.8), mix=1.5, zero_at="low")
    assert low.tolist() == pytest.approx([-3.0, 0.0, 2 / 3, 4 / 3, 2.0, 2.0], abs=2e-5)


def value(s, a, b, part):
    """g as written, one sum at a time."""
    tail = -(a - s) if s < a else 0.0
    middle = max(s - a, 0.0) - max(s - b, 0.0) + (a - b if part.zero_at == "high" else 0.0)
    return (part.mix * tail / (part.low + 1e-6) + middle / (part.high - part.low + 1e-6)) / (part.mix + 1)


def bundled(rows, size):
    """Bundles of (groups' members by row, number of sheets), in order."""
    groups = {}
    for i, (g, _, compared) in enumerate(rows):
        if compared:
            groups.setdefault(g, []).append(i)
    order = [g for g in dict.fromkeys(g for g, _, _ in rows) if g in groups]
    count = max(1, len(order) // size)
    bundles = [[groups[g] for q, g in enumerate(order) if q * count // len(order) == b] for b in range(count)]
    return [(members, min(map(len, members))) for members in bundles if members]


def sums_of(rows, size):
    return [
        [sum(rows[m[j]][1] for m in members) * size / len(members) for j in range(n)]
        for members, n in bundled(rows, size)
    ]


def std_or_one(values, least):
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return (spread if spread > least else 1.0) + 1e-6


def by_hand(rows, part, tracked=None):
    out = [0.0] * len(rows)
    for (members, n), sums in zip(bundled(rows, part.size), sums_of(rows, part.size), strict=True):
        a, b = tracked or np.quantile(sums, [part.low, part.high])
        for j in range(n):
            for m in members:
                x = value(sums[j], a, b, part) / std_or_one(sums, 1e-12)
                out[m[j]] = x / (std_or_one([rows[i][1] for i in m], 1e-3) if part.share == "std" else 1.0)
    return out


row = st.tuples(st.sampled_from("abcdefg"), st.sampled_from([0.0, 0.5, 1.0]), st.booleans())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(row, min_size=1, max_size=24),
    st.integers(1, 3),
    st.sampled_from(["std", "equal"]),
    st.sampled_from(["high", "low"]),
    st.sampled_from([None, (0.75, 2.25)]),
)
def test_it_equals_a_loop(grow, rows, size, share, zero, tracked):
    forest = grow([(g, r, [1], {"compared": c}) for g, r, c in rows])
    part = RiskBundle(size=size, share=share, zero_at=zero)
    if tracked:
        part.load_state_dict({"low": tracked[0], "high": tracked[1]})
    assert part(forest, {}, 0).tolist() == pytest.approx(by_hand(rows, part, tracked), abs=1e-6)


def test_bundles_are_consecutive_and_at_least_of_size():
    group = torch.arange(7).repeat_interleave(2)
    actual = sheets(torch.ones(14), group, 3, torch.ones(14, dtype=torch.bool))
    assert actual.bundle.tolist() == [0] * 8 + [1] * 6  # 7 groups: 4 and 3
    assert actual.total.tolist() == pytest.approx([3.0] * 14)  # the sum of four scaled to three
    assert int(actual.leads.sum()) == 4 and bool(actual.is_on_sheet.all())
    few = sheets(torch.ones(4), torch.tensor([0, 0, 0, 1]), 5, torch.ones(4, dtype=torch.bool))
    assert few.bundle.tolist() == [0] * 4 and few.is_on_sheet.tolist() == [True, False, False, True]
    assert few.total[few.is_on_sheet].tolist() == pytest.approx([5.0, 5.0])


def test_with_the_scripts_settings_nothing_is_positive(grow):
    g = torch.Generator().manual_seed(3)
    rows = [(f"q{q}", float(torch.rand(1, generator=g) < 0.5), [1]) for q in range(10) for _ in range(5)]
    forest = grow(rows)
    credit = gxpo.method("riskpo").advantages(forest)
    assert bool((credit <= 0).all()) and bool((credit < 0).any()) and bool((credit == 0).any())
    low = gxpo.method("riskpo", {"credit.zero_at": "low"}).advantages(forest)
    assert bool((low > 0).any()) and bool((low < 0).any())


def test_quantiles_start_at_the_first_steps_and_follow(grow):
    part = RiskBundle(size=1, low=0.25, high=0.75, lr=0.5)
    step = [grow([("a", r, [1]) for r in rewards]) for rewards in ((0.0, 1.0, 2.0, 3.0, 4.0), (1.0, 1.0, 9.0, 9.0))]
    part.observe(step[0])
    assert part.state_dict() == {"low": 1.0, "high": 3.0}
    part.observe(step[1])  # below 1: none; below 3: half
    assert part.state_dict() == pytest.approx({"low": 1.0 + 0.5 * 0.25, "high": 3.0 + 0.5 * 0.25})
    part.observe(grow([("a", None, [1]), ("a", 5.0, [1], {"compared": False})]))  # nobody counts
    assert part.state_dict() == pytest.approx({"low": 1.125, "high": 3.125})


def test_tracked_quantiles_settle_at_their_levels(grow):
    part = RiskBundle(size=1, low=0.2, high=0.8, lr=0.02)
    forest = grow([("a", i / 100, [1]) for i in range(101)])
    part.load_state_dict({"low": 0.5, "high": 0.5})
    for _ in range(200):
        part.observe(forest)
    assert part.state_dict() == pytest.approx({"low": 0.2, "high": 0.8}, abs=0.02)


def test_a_resumed_part_gives_the_same_from_then_on(grow):
    g = torch.Generator().manual_seed(5)
    steps = [
        grow([(f"q{q}", float(torch.randint(0, 3, (1,), generator=g)), [1]) for q in range(6) for _ in range(3)])
        for _ in range(4)
    ]
    method = gxpo.method("riskpo", {"credit.size": 3})
    expected = []
    for forest in steps:
        expected.append(method.advantages(forest))
        method.observe(forest)
    assert not torch.equal(expected[1], gxpo.method("riskpo", {"credit.size": 3}).advantages(steps[1]))  # it remembers
    first, second = (gxpo.method("riskpo", {"credit.size": 3}) for _ in range(2))
    for forest in steps[:2]:
        first.observe(forest)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for forest, credit in zip(steps[2:], expected[2:], strict=True):
        assert torch.equal(second.advantages(forest), credit)
        second.observe(forest)
    assert second.state_dict() == method.state_dict()
    assert first.fill(horizon=1.0).state_dict() == {"credit": {}}  # a run of its own starts afresh


def test_equal_sums_and_unscored_rows(grow):
    equal = grow([(g, r, [1]) for g, r in (("a", 0.1), ("b", 0.7)) for _ in range(3)])
    assert bool((RiskBundle(size=2)(equal, {}, 0) == 0).all())
    part = RiskBundle(size=2)
    part.load_state_dict({"low": 1.0, "high": 2.0})  # against what was before they are low: std of the sums counts as 1
    expected = value(0.8, 1.0, 2.0, part) / (1 + 1e-6) ** 2
    assert part(equal, {}, 0).tolist() == pytest.approx([expected] * 6)
    rows = [("a", 1.0, [1]), ("a", 0.0, [1]), ("a", None, [1]), ("b", 1.0, [1]), ("b", 1.0, [1])]
    with_one = gxpo.method("riskpo").advantages(grow(rows)).tolist()
    without = gxpo.method("riskpo").advantages(grow([r for r in rows if r[1] is not None])).tolist()
    assert with_one == [*without[:2], 0.0, *without[2:]]


@pytest.mark.parametrize(
    "bad", [{"size": 0}, {"low": 0.9, "high": 0.2}, {"high": 1.0}, {"mix": -1.0}, {"lr": -0.1}, {"zero_at": "mean"}]
)
def test_options(bad):
    with pytest.raises(ConfigError, match="credit"):
        RiskBundle(**bad)


def test_the_least_divisor_is_of_the_levels_and_of_the_spread(grow):
    # quantiles of 0 1 2 3 4 at .25 and .75: 1 and 3; std 1.581139. Of 0: -1 / (.25 + .5) / 2; of 4: 2 / (.5 + .5) / 2
    part = RiskBundle(size=1, low=0.25, high=0.75, mix=1.0, zero_at="low", share="equal", eps=0.5)
    actual = part(grow([("a", float(r), [1]) for r in range(5)]), {}, 0)
    unit = 1.581139 + 0.5
    assert actual.tolist() == pytest.approx([-2 / 3 / unit, 0.0, 0.5 / unit, 1 / unit, 1 / unit], abs=1e-6)


def test_quantiles_are_over_sheets(grow):
    rows = [("a", 1.0, True), ("a", 0.0, True), ("a", 1.0, True), ("b", 0.5, True), ("b", 1.0, True), ("b", 0.0, True)]
    rows += [("b", 1.0, False), ("c", 1.0, True), ("c", 0.0, True)]
    actual = RiskBundle(size=3)(grow([(g, r, [1], {"compared": c}) for g, r, c in rows]), {}, 0)
    assert actual.tolist() == pytest.approx(by_hand(rows, RiskBundle(size=3)), abs=1e-6)
    # the third attempts are on no sheet: the last group has two
    uneven = torch.tensor([1.0, 0.0, 1.0, 0.5, 1.0, 0.0, 1.0, 0.5], dtype=torch.float64)
    several = sheets(uneven, torch.tensor([0, 0, 0, 1, 1, 1, 2, 2]), 3, torch.ones(8, dtype=torch.bool))
    assert several.total.tolist() == [2.5, 1.5, 0.0, 2.5, 1.5, 0.0, 2.5, 1.5]
    three = sheets(torch.ones(4), torch.tensor([0, 1, 2, 2]), 2, torch.tensor([True, True, True, False]))
    assert three.bundle.tolist() == [0, 0, 0, -1] and three.total.tolist() == pytest.approx([2.0, 2.0, 2.0, 0.0])
