"""NGRPO: a group that a rollout of the best reward has joined."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import GroupRelative, advantage, pseudo_rollouts
from gxpo.base.errors import ConfigError


def of(rewards, **more):
    return pseudo_rollouts(
        torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards)).long(), **more
    ).tolist()


def test_the_cards_numbers():
    # [0 0 0 0] and 1: mean .2, std .447214, -.2 over that; [1 0 0 0] and 1: mean .4, std .547723, .6 and -.4 over that
    assert of([0.0, 0, 0, 0]) == pytest.approx([-0.447213] * 4, abs=1e-6)
    assert of([1.0, 1, 1, 1]) == [0.0] * 4
    assert of([1.0, 0, 0, 0]) == pytest.approx([1.095443] + [-0.730295] * 3, abs=1e-6)
    assert of([0.0] * 8) == pytest.approx([-0.333332] * 8, abs=1e-6)


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_equal_groups_below_the_best_have_one_over_the_root(size):
    for reward, best in ((0.0, 1.0), (0.7, 1.0), (-3.0, 20.0)):
        found = of([reward] * size, value=best, eps=0.0)
        assert found == pytest.approx([-1 / math.sqrt(size + 1)] * size)


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 1.0, 0.3, 0.7]), st.booleans()), min_size=1, max_size=9
)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(1, 3), st.sampled_from([1.0, 2.0]))
def test_it_equals_a_loop(grow, rows, count, best):
    forest = grow([(g, r, [2], {"compared": c}) for g, r, c in rows])
    expected = []
    for g, r, _ in rows:
        peers = [q for h, q, d in rows if h == g and d] + [best] * count
        mean = sum(peers) / len(peers)
        std = math.sqrt(sum((q - mean) ** 2 for q in peers) / (len(peers) - 1)) if len(peers) > 1 else 0.0
        expected.append((r - mean) / (std + 1e-6) if len(set(peers)) > 1 else 0.0)
    found = advantage(pseudo_rollouts, value=best, count=count)(forest, {}, 0)
    assert found[::2].tolist() == pytest.approx(expected, abs=1e-9) and torch.equal(found[::2], found[1::2])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 0.3]), min_size=1, max_size=9), st.integers(1, 3))
def test_the_credit_of_a_group_sums_to_less_than_nothing(rewards, count):
    everyone = rewards + [1.0] * count
    mean = sum(everyone) / len(everyone)
    std = math.sqrt(sum((r - mean) ** 2 for r in everyone) / (len(everyone) - 1))
    expected = -count * (1.0 - mean) / (std + 1e-6) if len(set(everyone)) > 1 else 0.0
    assert sum(of(rewards, count=count)) == pytest.approx(expected, abs=1e-9) and expected <= 0


def test_without_a_group_there_is_nothing_to_join():
    outcome, group = torch.tensor([1.0, 0.0]), torch.tensor([-1, -1])
    assert pseudo_rollouts(outcome, group).tolist() == [0.0, 0.0]
    assert pseudo_rollouts(outcome[:0], group[:0]).shape == (0,)


def test_other_baselines_take_it_in_too(grow):
    forest = grow([("a", r, [1]) for r in (0.0, 0.0)])
    # the others of each: 0 and 1, so that the baseline is 1/2
    part = advantage(pseudo_rollouts, center="leave_one_out", scale="none")
    assert part(forest, {}, 0).tolist() == [-0.5, -0.5]
    assert not GroupRelative(center="leave_one_out", scale="none")(forest, {}, 0).any()


def test_the_method_and_its_errors():
    m = gxpo.method("ngrpo")
    assert m.credit == advantage(pseudo_rollouts) and m.credit.learns_from_equal_groups
    gate = m.terms["policy"].surrogate
    assert (gate.clip_low, gate.clip_high) == (0.16, 0.24) and m.terms["policy"].aggregate == "token_mean"
    for wrong in ({"count": 0}, {"value": math.inf}, {"scale": "sdt"}):
        with pytest.raises(ConfigError, match=f"credit.{next(iter(wrong))} is"):
            advantage(pseudo_rollouts, **wrong)
    with pytest.raises(ConfigError, match="learns from groups of equal rewards"):
        gxpo.method("ngrpo+dapo", {"objective.clip_low": 0.16, "objective.clip_high": 0.24})


def test_equal_to_the_best_that_float32_cannot_say_is_exactly_zero():
    found = pseudo_rollouts(torch.full((3,), 0.1, dtype=torch.float64), torch.zeros(3).long(), value=0.1)
    assert found.tolist() == [0.0, 0.0, 0.0]
