"""The clipped gap to somebody else's outcome, alone and added to the group advantage (AAPO)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gxpo
from gxpo.credit import GroupRelative
from gxpo.credit.clipped_gap import ClippedGap, clipped_gap
from gxpo.errors import ConfigError, MissingSignal


def credits(forest, name, baseline, **overrides):
    signals = {"baseline": torch.tensor(baseline, dtype=torch.float64)}
    return gxpo.method(name, overrides).advantages(forest, signals).tolist()


def test_the_cards_numbers(grow):
    # mean .75, sample std .5: .25 / .5001 = .4999, -.75 / .5001 = -1.4997; gaps 1, 0, 0, 1 -> .28, 0, 0, .28
    eps = {"credit.eps": 1e-4}
    mixed = grow([("g", r, [1]) for r in (1.0, 0.0, 1.0, 1.0)])
    found = credits(mixed, "aapo", [0.0, 0.0, 1.0, 0.0], **eps)
    assert found == pytest.approx([0.7799, -1.4997, 0.4999, 0.7799], abs=1e-6)
    right = grow([("g", 1.0, [1])] * 4)
    assert credits(right, "aapo", [0.0, 0.0, 1.0, 0.0], **eps) == [0.28, 0.28, 0.0, 0.28]


rewards = st.floats(-2, 2, allow_nan=False)


@given(st.lists(st.tuples(rewards, rewards), min_size=1, max_size=8), st.floats(-1, 0), st.floats(0, 1))
def test_it_equals_a_loop(rows, low, high):
    outcome, baseline = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    for value, (r, b) in zip(clipped_gap(outcome, baseline, low, high).tolist(), rows, strict=True):
        assert value == (low if r - b < low else high if r - b > high else r - b)


def test_without_a_gap_it_is_grpo(grow):
    rewards = [1.0, 0.0, 0.3, 0.3, 0.9]
    forest = grow([("a", r, [2]) for r in rewards[:3]] + [("b", r, [1]) for r in rewards[3:]])
    assert credits(forest, "aapo", rewards) == GroupRelative()(forest, {}, 0).tolist()


def test_an_unscored_row_has_nothing_and_the_others_do_not_change(grow):
    rows = [("g", 1.0, [1]), ("g", None, [2]), ("g", 0.0, [1])]
    found = credits(grow(rows), "aapo", [0.0, 0.5, 0.0])
    assert found[1:3] == [0.0, 0.0]
    alone = credits(grow([rows[0], rows[2]]), "aapo", [0.0, 0.0])
    assert [found[0], found[3]] == alone and alone[0] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6) + 0.28)


def test_bounds_on_one_side_of_zero_are_refused_and_the_baseline_is_asked_for(grow):
    with pytest.raises(ConfigError, match="either side of 0"):
        ClippedGap(low=0.1)
    with pytest.raises(MissingSignal, match="baseline"):
        gxpo.method("aapo").advantages(grow([("g", 1.0, [1]), ("g", 0.0, [1])]))


def test_the_gradient_is_that_of_the_log_likelihood(grow):
    """One update a step: dL/dlogp = -A / tokens, for any behaviour policy, however good the answer."""
    forest = grow([("g", 1.0, [2]), ("g", 0.0, [1]), ("g", 0.0, [3])])
    m, baseline = gxpo.method("aapo"), {"baseline": torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)}
    logprob = torch.linspace(-3, -0.1, 6, dtype=torch.float64).requires_grad_()
    policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob, proximal_logprob=logprob.detach())
    credit = m.advantages(forest, baseline)
    (gradient,) = torch.autograd.grad(m.loss(forest, policy, advantages=credit, signals=baseline).value, logprob)
    assert torch.allclose(gradient, -credit / 6, rtol=0, atol=1e-15)
    assert float(credit[0]) == pytest.approx(2 / 3 / (math.sqrt(1 / 3) + 1e-6) + 0.28)
