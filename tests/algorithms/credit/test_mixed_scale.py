"""MAPO: between the spread and the mean of a group, by how certain its outcome is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import advantage, group_relative, mixed_scale


def of(rewards, **more):
    rate = torch.full((len(rewards),), sum(r > 0 for r in rewards) / len(rewards))
    return mixed_scale(torch.tensor(rewards), torch.zeros(len(rewards)).long(), rate, **more).tolist()


def test_the_cards_numbers():
    # p = 1/4: l = .25; .75 * 1.732051 + .25 * 3. p = 3/4: .75 * .577350 + .25 * 1/3
    assert of([1.0, 0, 0, 0], eps=0.0, ddof=0) == pytest.approx([2.049038] + [-0.683013] * 3, abs=1e-6)
    assert of([1.0, 1, 1, 0], eps=0.0, ddof=0) == pytest.approx([0.516346] * 3 + [-1.549038], abs=1e-6)
    # one degree off, as coded: .75 * 1.5 + .25 * 3, .75 * .5 + .25 / 3
    assert of([1.0, 0, 0, 0], eps=0.0) == pytest.approx([1.875] + [-0.625] * 3, abs=1e-12)
    assert of([1.0, 1, 1, 0], eps=0.0) == pytest.approx([0.458333] * 3 + [-1.375], abs=1e-6)


def test_all_wrong_and_all_right_have_exactly_nothing():
    for rewards in ([0.0] * 5, [1.0] * 5, [0.7] * 3, [1.0], [0.0]):
        assert of(rewards) == [0.0] * len(rewards)


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 1.0, 0.5]), st.booleans()), min_size=1, max_size=9
)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_it_equals_a_loop(grow, rows):
    forest = grow([(g, r, [1], {"success": r == 1.0, "compared": c}) for g, r, c in rows])
    expected = []
    for g, r, compared in rows:
        peers = [q for h, q, d in rows if h == g and d]
        n, differ = len(peers), len(set(peers)) > 1
        mean = sum(peers) / n if n else 0.0
        certain = 1 - 4 * (p := sum(q == 1.0 for q in peers) / n if n else 0.0) * (1 - p)
        std = math.sqrt(sum((q - mean) ** 2 for q in peers) / (n - 1)) if n > 1 else 0.0
        z = (r - mean) / (std + 1e-6) if differ else 0.0
        percent = (r - mean) / (mean + 1e-6) if mean > 0 and (differ or not compared) else 0.0
        expected.append((1 - certain) * z + certain * percent)
    assert advantage(mixed_scale)(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("wins", range(1, 16))
def test_it_lies_between_grpo_and_maxrl(wins):
    rewards = [1.0] * wins + [0.0] * (16 - wins)
    r, one = torch.tensor(rewards), torch.zeros(16).long()
    grpo = group_relative(r, one).tolist()
    maxrl = group_relative(r, one, scale="mean").tolist()
    found = of(rewards)
    assert sum(found) == pytest.approx(0, abs=1e-9)
    assert all(min(a, b) - 1e-9 <= x <= max(a, b) + 1e-9 for x, a, b in zip(found, grpo, maxrl, strict=True))
    if wins == 8:
        assert found == pytest.approx(grpo)


def test_the_verdict_goes_before_the_score(grow):
    rewards = (1.0, 0.5, 0.0, 0.0)
    unsaid = grow([("a", r, [1]) for r in rewards])  # two above 0: rate 1/2, GRPO
    said = grow([("a", r, [1], {"success": r == 1.0}) for r in rewards])  # rate 1/4
    plain = group_relative(unsaid.outcome, torch.zeros(4).long())
    assert torch.equal(advantage(mixed_scale)(unsaid, {}, 0), plain)
    assert not torch.allclose(advantage(mixed_scale)(said, {}, 0), plain)
    assert gxpo.method("mapo").credit == advantage(mixed_scale)
