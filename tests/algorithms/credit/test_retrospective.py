"""Rollouts that come back: their shares of the group times what their update was worth (PIPO)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gxpo.algorithms.credit import GroupRelative, advantage
from gxpo.algorithms.credit.baselines import retrospective, shares
from gxpo.base.errors import ConfigError


def credit(forest, value, **fields):
    signals = {"improvement": torch.full((forest.n_trajectories,), value, dtype=torch.float64)}
    return advantage(retrospective, **fields)(forest, signals, 0).tolist()


@pytest.mark.parametrize(("phi", "expected"), [(3.485685, [6.971370, -2.323790]), (-0.271109, [-0.542218, 0.180739])])
def test_the_cards_numbers(grow, phi, expected):
    # A = 1.5, -.5, -.5, -.5; sum |A| = 3; shares 4 * 1.5 / 3 = 2 and -2 / 3
    forest = grow([("g", r, [1], {"origin": "replay"}) for r in (1.0, 0, 0, 0)])
    found = credit(forest, phi, eps=0.0, share_eps=0.0)
    assert found == pytest.approx([expected[0], *[expected[1]] * 3], abs=2e-6)


row = st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.1, 1.0]), st.booleans())


@given(st.lists(row, min_size=1, max_size=9), st.sampled_from([-0.3, 0.0, 2.5]))
def test_it_equals_a_loop(grow, rows, phi):
    """Group "a" is fresh, group "b" comes back."""
    forest = grow([(g, r, [1], {"compared": c, "origin": "replay" if g == "b" else "policy"}) for g, r, c in rows])
    plain = GroupRelative()(forest, {}, 0).tolist()
    for value, base, (g, *_) in zip(credit(forest, phi), plain, rows, strict=True):
        if g == "a":
            assert value == base
            continue
        counting = [a for a, (h, _, c) in zip(plain, rows, strict=True) if h == "b" and c]
        total = sum(abs(a) for a in counting)
        assert value == pytest.approx(phi * len(counting) * base / (total + 1e-6), abs=1e-12)


def test_every_group_moves_as_far_and_equal_groups_do_not():
    a = torch.tensor([1.5, -0.5, -0.5, -0.5, 0.01, -0.01, 0.0, 0.0], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    found = shares(a, group, eps=0.0)
    assert found[:4].abs().sum() == pytest.approx(4) and found[4:6].tolist() == pytest.approx([1, -1])
    assert found[6:].tolist() == [0.0, 0.0]
    assert torch.allclose(shares(7 * a, group, eps=0.0), found, rtol=0, atol=1e-12)


def test_without_improvement_nothing_comes_of_it_and_worse_turns_it_round(grow):
    forest = grow([("g", r, [1], {"origin": "replay"}) for r in (1.0, 0, 0)] + [("h", 1.0, [1]), ("h", 0.0, [1])])
    still, up, down = (credit(forest, v) for v in (0.0, 1.0, -1.0))
    assert still[:3] == [0.0] * 3 and up[:3] == [-x for x in down[:3]] and up[0] > 0
    assert still[3:] == up[3:] == down[3:] and up[3] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6))
    with pytest.raises(ConfigError, match=r"credit\.center"):
        advantage(retrospective, center="mode")  # type: ignore[arg-type]  # on purpose
