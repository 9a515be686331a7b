"""LENS's credit: mixed groups as in GRPO, all-wrong ones centred and weighed down; the card's numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.test_bonus import spoken as forest_of

import gxpo
from gxpo.algorithms.credit import GroupRelative, advantage
from gxpo.algorithms.credit.success_rate import negative_groups
from gxpo.base.errors import ConfigError

P = (0.6, 0.5, 0.4, 0.3)


def shaped(right):
    """The forest after the method's reward, and its credit."""
    rows = [("g", float(v), [math.log(p)] * 2, {"success": v}) for v, p in zip(right, P, strict=True)]
    forest, m = forest_of(rows), gxpo.method("lens")
    return m.advantages(m.shaped(forest))[::2]


def test_the_cards_numbers():
    # r' = -.25 -.178571 -.125 -.083333, mean -.159226, a quarter of the difference
    wrong = shaped([False] * 4)
    assert wrong.tolist() == pytest.approx([-0.022693, -0.004836, 0.008557, 0.018973], abs=1e-6)
    # r' = 1 -.065789 -.05 -.035714, z with one degree of freedom
    mixed = shaped([True, False, False, False])
    assert mixed.tolist() == pytest.approx([1.499590, -0.528962, -0.498909, -0.471719], abs=5e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from([None, -0.2, 0.0, 0.7, 1.0]), st.booleans()),
        min_size=1,
        max_size=9,
    )
)
def test_it_equals_a_loop(rows):
    forest = forest_of([(g, r, [-1.0], {"compared": c, "success": r if r is None else r == 1.0}) for g, r, c in rows])
    found = gxpo.method("grpo", {"credit": "negative_groups", "credit.alpha": 0.5}).advantages(forest).tolist()
    for i, (g, r, _) in enumerate(rows):
        peers = [q for h, q, c in rows if h == g and c and q is not None]
        expected = 0.0
        if r is not None and peers:
            mean = sum(peers) / len(peers)
            if any(q == 1.0 for q in peers):
                equal = max(peers) - min(peers) <= 1e-12 or len(peers) < 2
                spread = 0.0 if equal else math.sqrt(sum((q - mean) ** 2 for q in peers) / (len(peers) - 1))
                expected = 0.0 if equal else (r - mean) / (spread + 1e-6)
            else:
                expected = 0.5 * (r - mean)
        assert found[i] == pytest.approx(expected, abs=1e-9)


def test_with_a_success_in_every_group_it_is_grpo_and_equal_groups_are_still():
    forest = forest_of([(g, r, [-1.0], {}) for g, r in (("a", 1.0), ("a", 0.0), ("b", 1.0), ("b", 0.5), ("b", 0.0))])
    assert torch.equal(advantage(negative_groups)(forest, {}, 0), GroupRelative()(forest, {}, 0))
    equal = forest_of([("a", -0.1, [-1.0], {"success": False}) for _ in range(3)])
    assert advantage(negative_groups)(equal, {}, 0).tolist() == [0.0] * 3


def test_groups_that_are_dropped_can_not_be_learned_from():
    with pytest.raises(ConfigError, match="drops"):
        gxpo.method("lens+dapo")
    with pytest.raises(ConfigError, match=r"credit\.alpha"):
        advantage(negative_groups, alpha=-0.1)
