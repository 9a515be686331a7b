"""Scales other than the group's own: the std of its tokens (HAPO), the std of the batch (Lite PPO)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import advantage, group_relative, length_weighted
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

ROWS = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from([0.0, 1.0, 0.1, 0.7]), st.integers(1, 4), st.sampled_from([1, 1, 0])
    ),
    min_size=1,
    max_size=10,
)


def forest_of(rows):
    return Forest.from_records(
        [
            {
                "schema": "gxpo.rollouts/1",
                "group": g,
                "id": f"t{i}",
                "prompt": [1],
                "turns": [{"action": [5] * n, "logprob": [-1.0] * n}],
                "reward": r,
                "compared": bool(c),
            }
            for i, (g, r, n, c) in enumerate(rows)
        ]
    )


def spread(values, ddof):
    if len(values) <= ddof:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - ddof))


# ---------------------------------------------------------------- tokens
def test_hapo_card():
    # rewards [1, 0], lengths [2, 6]: over eight tokens mean .25, std sqrt(.25 * .75) = .433013
    reward, length, one = torch.tensor([1.0, 0.0]), torch.tensor([2, 6]), torch.zeros(2).long()
    found = length_weighted(reward, length, one, scale="std", eps=0.0)
    assert found.tolist() == pytest.approx([1.732051, -0.577350], abs=1e-6)
    assert float((found * length).sum()) == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([1.2, math.inf]))
def test_token_std_equals_a_loop(rows, bound):
    expected = []
    groups = {g: [(r, n) for h, r, n, c in rows if h == g and c] for g, *_ in rows}
    for g, r, n, _ in rows:
        peers = groups[g]
        tokens = [q for q, m in peers for _ in range(m)]
        if len({q for q, _ in peers}) < 2:
            expected += [0.0] * n
            continue
        mean, std = sum(tokens) / len(tokens), spread(tokens, 0)
        if any(abs(q - mean) / (std + 1e-6) >= bound for q in tokens):
            rewards = [q for q, _ in peers]
            expected += [(r - sum(rewards) / len(rewards)) / (spread(rewards, 1) + 1e-6)] * n
        else:
            expected += [(r - mean) / (std + 1e-6)] * n
    found = advantage(length_weighted, scale="std", bound=bound)(forest_of(rows), {}, 0)
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_equal_lengths_give_grpo_with_the_population_std():
    reward, one = torch.tensor([1.0, 0.3, 0.0, 0.7]), torch.zeros(4).long()
    found = length_weighted(reward, torch.full((4,), 7), one, scale="std")
    assert found.tolist() == pytest.approx(group_relative(reward, one, ddof=0).tolist())


# ---------------------------------------------------------------- batch
def test_lite_ppo_card():
    # [1 0 0 0 | 1 1 1 0]: batch std .534522 with one degree of freedom
    reward, group = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0]), torch.tensor([0] * 4 + [1] * 4)
    found = group_relative(reward, group, scale="batch_std", eps=0.0)
    assert found.tolist() == pytest.approx([1.403122] + [-0.467707] * 3 + [0.467707] * 3 + [-1.403122], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(ROWS)
def test_batch_std_equals_a_loop(rows):
    std = spread([r for _, r, _, c in rows if c], 1)
    expected = []
    for g, r, n, c in rows:
        peers = [q for h, q, _, d in rows if h == g and d]
        flat = not peers or (c and len(set(peers)) == 1) or std < 1e-9
        expected += [0.0 if flat else (r - sum(peers) / len(peers)) / (std + 1e-6)] * n
    m = gxpo.method("lite_ppo")
    assert m.advantages(forest_of(rows)).tolist() == pytest.approx(expected, abs=1e-9)


def test_shift_and_scale_of_rewards_do_not_matter_and_a_batch_of_one_group_is_grpo():
    reward = torch.tensor([0.2, 1.0, 0.4, 0.9, 0.1, 0.1], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    found = group_relative(reward, group, scale="batch_std", eps=0.0)
    moved = group_relative(3 * reward + 5, group, scale="batch_std", eps=0.0)
    torch.testing.assert_close(moved, found)
    one = torch.zeros(6).long()
    torch.testing.assert_close(group_relative(reward, one, scale="batch_std"), group_relative(reward, one))


def test_methods_and_bad_options():
    m = gxpo.method("hapo")
    assert (
        m.credit == advantage(length_weighted, scale="std", bound=5.0)
        and m.couples == "step"
        and "entropy" in m.outputs
    )
    for wrong in ({"scale": "mean"}, {"eps": -1.0}, {"bound": 0.0}):
        with pytest.raises(ConfigError, match="credit"):
            advantage(length_weighted, **wrong)
