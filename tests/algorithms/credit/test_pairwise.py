"""CAPO's credit: the card's numbers, the loop over pairs, the limit in which it is outcome less mean."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.test_bonus import spoken as forest_of

import gxpo
from gxpo.algorithms.credit import advantage, group_relative
from gxpo.algorithms.credit.sets import pairwise_auc
from gxpo.base.errors import ConfigError

ONE = torch.zeros(3, dtype=torch.int64)


def test_the_cards_numbers():
    # sigmoid(-.4) / .5 = .802625; sigmoid(.4) / .5 = 1.197375; without the 1 / tau half of it
    lp, right = torch.tensor([-0.2, -0.6, -0.4], dtype=torch.float64), torch.tensor([True, True, False])
    found = pairwise_auc(lp, right, ONE, tau=0.5)
    assert found.tolist() == pytest.approx([0.802625, 1.197375, -2.0], abs=1e-6)
    assert (0.5 * found).tolist() == pytest.approx([0.401312, 0.598688, -1.0], abs=1e-6)


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
    found = gxpo.method("capo_calibration", {"credit.tau": tau}).advantages(forest)
    for i, (g, v, lp, _) in enumerate(rows):
        expected = 0.0
        for j, (h, u, m, c) in enumerate(rows):
            if None in (u, v) or h != g or u == v or not c or i == j:
                continue
            ahead = lp - m if v else m - lp
            pull = 1 / (tau * (1 + math.exp(ahead / tau)))
            expected += pull if v else -pull
        assert found[2 * i].item() == pytest.approx(expected, abs=1e-9)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.floats(-9, 0)), min_size=1, max_size=9), st.floats(-5, 5)
)
def test_sums_signs_shifts_and_groups_of_one_label(rows, shift):
    g, right = torch.tensor([g for g, *_ in rows]), torch.tensor([v for _, v, _ in rows])
    lp = torch.tensor([x for *_, x in rows], dtype=torch.float64)
    found = pairwise_auc(lp, right, g)
    assert bool((found[right] >= 0).all() and (found[~right] <= 0).all())
    assert pairwise_auc(lp + shift, right, g).tolist() == pytest.approx(found.tolist(), abs=1e-9)
    for k in range(3):
        own = g == k
        assert float(found[own].sum()) == pytest.approx(0.0, abs=1e-9)
        if bool(right[own].all()) or not bool(right[own].any()):
            assert bool((found[own] == 0).all())
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    assert pairwise_auc(lp[order], right[order], g[order]).tolist() == pytest.approx(found[order].tolist(), abs=1e-12)


def test_of_high_temperature_it_is_the_outcome_less_the_mean():
    lp, right = torch.tensor([-0.2, -0.6, -0.4]), torch.tensor([True, True, False])
    wanted = group_relative(right.double(), ONE, scale="none")
    tau = 1e7
    assert (2 * tau / 3 * pairwise_auc(lp, right, ONE, tau=tau)).tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


def test_confident_mistakes_and_unsure_successes_weigh_most():
    right = torch.tensor([True, True, False, False])
    found = pairwise_auc(torch.tensor([-0.1, -2.0, -0.1, -2.0]), right, torch.zeros(4).long())
    assert found[1] > found[0] > 0 and found[2] < found[3] < 0


def test_tau_is_above_zero_and_empty_is_fine():
    with pytest.raises(ConfigError, match=r"credit\.tau"):
        advantage(pairwise_auc, tau=0.0)
    nothing = torch.zeros(0)
    assert pairwise_auc(nothing, nothing.bool(), nothing.long()).shape == (0,)


def test_a_verdict_goes_before_the_outcome_and_answers_without_tokens_are_in_no_pair():
    # equal log-probs: the pull of a pair is sigmoid(0) / .6 = .833333; of one token each, the last with none to train
    rows = [("g", 0.0, [-1.0], {"success": True}), ("g", 1.0, [-1.0], {"success": False}), ("g", 0.0, [-1.0], {})]
    records = forest_of(rows).to_records()
    records[2]["turns"][0]["trainable"] = [False]
    found = gxpo.method("capo_calibration").advantages(gxpo.Forest.from_records(records))
    assert found[:2].tolist() == pytest.approx([0.833333, -0.833333], abs=1e-6)
