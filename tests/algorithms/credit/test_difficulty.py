"""GRPO-LEAD's difficulty-aware advantage."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import GroupRelative, advantage
from gxpo.algorithms.credit.success_rate import difficulty_weighted, logistic_weight
from gxpo.base.errors import ConfigError


def w(p):
    return 0.4 + 1.1 / (1 + math.exp(10 * (p - 0.75)))


def test_the_cards_numbers(grow):
    # R = 1.063151 1 .940600 -1: mean .500938, std 1.001873; w(.75) = .4 + 1.1 / 2 = .95, w(.25) = 1.492638
    rewards = [math.exp(0.05 * 1.5**0.5), 1.0, math.exp(-0.05 * 1.5**0.5), -1.0]
    rows = [("g", r, [2], {"success": r > 0}) for r in rewards]
    found = advantage(difficulty_weighted)(grow(rows), {}, 0)[::2]
    assert found.tolist() == pytest.approx([0.533103, 0.473222, 0.416897, -2.236162], abs=5e-6)
    assert logistic_weight(torch.tensor([0.75, 0.25])).tolist() == pytest.approx([0.95, 1.492638], abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([-1.0, 0.94, 1.0, 1.06]), st.booleans()),
        min_size=1,
        max_size=9,
    )
)
def test_it_equals_a_loop(grow, rows):
    forest = grow([(g, r, [1], {"success": r > 0, "compared": c}) for g, r, c in rows])
    expected = []
    for g, r, _ in rows:
        peers = [q for h, q, d in rows if h == g and d]
        mean = sum(peers) / len(peers) if peers else 0.0
        equal = not peers or max(peers) - min(peers) <= 1e-12
        if equal or len(peers) < 2:
            expected.append(0.0)
            continue
        std = math.sqrt(sum((q - mean) ** 2 for q in peers) / (len(peers) - 1))
        a, rate = (r - mean) / (std + 1e-6), sum(q > 0 for q in peers) / len(peers)
        expected.append(a * (w(rate) if a > 0 else w(1 - rate)))
    assert advantage(difficulty_weighted)(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-9)


def test_the_second_curve_is_w_of_one_minus_rate_not_one_minus_w():
    found = difficulty_weighted(torch.tensor([1.0, -1.0]), torch.tensor([0.25, 0.25]))
    assert found.tolist() == pytest.approx([w(0.25), -w(0.75)])
    assert found[1] != pytest.approx(-(1 - w(0.25)))


def test_successes_at_hard_tasks_and_failures_at_easy_ones_weigh_more():
    rates = torch.linspace(0, 1, 11)
    up = difficulty_weighted(torch.ones(11), rates)
    down = difficulty_weighted(-torch.ones(11), rates)
    assert bool((up.diff() < 0).all()) and bool((down.diff() < 0).all())
    assert bool((up >= 0.4).all() and (up <= 1.5).all())


def test_equal_curves_are_grpo_times_a_constant(grow):
    forest = grow([("a", r, [2], {"success": bool(r)}) for r in (1.0, 0, 0, 1, 0)])
    flat = advantage(difficulty_weighted, low=1.0, high=1.0)(forest, {}, 0)
    assert torch.equal(flat, GroupRelative()(forest, {}, 0))
    with pytest.raises(ConfigError, match="0 or more"):
        advantage(difficulty_weighted, low=-0.1)


def test_without_verdicts_a_score_above_zero_counts_as_correct(grow):
    rewards = (1.0, 0.0, 0.0, 1.0)
    said = grow([("a", r, [1], {"success": bool(r)}) for r in rewards])
    unsaid = grow([("a", r, [1]) for r in rewards])
    assert torch.equal(advantage(difficulty_weighted)(said, {}, 0), advantage(difficulty_weighted)(unsaid, {}, 0))
    # and the verdict goes before the score
    other = grow([("a", r, [1], {"success": False}) for r in rewards])
    assert not torch.equal(advantage(difficulty_weighted)(said, {}, 0), advantage(difficulty_weighted)(other, {}, 0))


def test_the_method_reads_the_shaped_outcome():
    m = gxpo.method("grpo_lead")
    assert list(m.shapes) == ["concise"] and m.credit == advantage(difficulty_weighted)
