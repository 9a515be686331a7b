"""MC-GRPO: the median rollout is compared and not trained."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of
from tests.battery import battery, made_up, policy_of

import gxpo
from gxpo.algorithms.weighting import TokenWeight
from gxpo.algorithms.weighting.token_curves import drop_median


def drop_median_weight(**options):
    return part_of("mc_grpo", "drop_median", **options)


ROWS = st.lists(
    st.tuples(st.integers(-1, 2), st.sampled_from([0.0, 1.0, 0.3, 0.7]), st.booleans()), min_size=1, max_size=14
)


@settings(max_examples=80, deadline=None)
@given(ROWS)
def test_it_equals_a_loop(rows):
    group, reward, compared = (torch.tensor(c) for c in zip(*rows, strict=True))
    expected = [1.0] * len(rows)
    for g in {g for g, _, _ in rows if g >= 0}:
        members = [i for i, (h, _, c) in enumerate(rows) if h == g and c]
        if len(members) > 1:
            ordered = sorted(members, key=lambda i: (rows[i][1], i))
            value = rows[ordered[(len(members) - 1) // 2]][1]
            dropped = next(i for i in members if rows[i][1] == value)
            for i in members:
                expected[i] = 0.0 if i == dropped else len(members) / (len(members) - 1)
    found = drop_median(reward, group, compared)
    assert found.tolist() == pytest.approx(expected) and found.dtype == torch.float64


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 0.3, 0.7]), min_size=1, max_size=9))
def test_the_dropped_one_has_no_credit_and_the_weights_sum_to_the_group(rewards):
    r, one = torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards)).long()
    weight = drop_median(r, one, one == 0)
    assert float(weight.sum()) == pytest.approx(len(rewards))
    credit = gxpo.credit.group_relative(r, one, "lower_median", "median_absolute", eps=1e-3)
    assert bool((credit[weight == 0] == 0).all()) and int((weight == 0).sum()) == (len(rewards) > 1)


def test_the_loss_is_that_of_the_kept_ones_alone():
    m = gxpo.method("mc_grpo", {"objective.kl.coef": 0.0})
    forest = battery(2, sizes=(5, 5, 5))
    signals = made_up(m, forest, 2)
    noise = torch.randn(forest.n_entries, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logprob = signals["proximal_logprob"] + 0.3 * noise
    credit = m.advantages(forest, signals)
    whole = m.loss(forest, policy_of(forest, {"logprob": logprob}, signals), advantages=credit, signals=signals)
    kept = (m.token_weights(forest, credit)[[int(forest.path_of(r)[0]) for r in range(15)]] > 0).nonzero().squeeze(1)
    entries, few = forest.entries_of(kept.tolist()), forest.select(kept)
    assert few.n_trajectories == 12
    narrow = {k: v[entries] for k, v in signals.items()}
    plain = gxpo.method("grpo")
    alone = plain.loss(few, policy_of(few, {"logprob": logprob[entries]}, narrow), advantages=credit[entries])
    assert float(whole.value) == pytest.approx(float(alone.value), rel=1e-12) and abs(float(alone.value)) > 0


def test_the_method():
    m = gxpo.method("mc_grpo")
    assert list(m.weights) == ["drop_median"] and m.weights["drop_median"] == TokenWeight(
        "outcome", "drop_median", "trajectory", "group"
    )
    assert m.credit == gxpo.credit.GroupRelative(center="lower_median", scale="median_absolute", eps=1e-3)
    paper = gxpo.method("mc_grpo@paper")
    assert paper.rollout.group_size == 9 and "kl" in paper.terms
