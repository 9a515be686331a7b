"""Rewards of reasoning steps by the change that comes next: the card's numbers, a loop, what the reference does."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.test_value_delta import chains

from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.value_trend import trend, trend_return
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.parts.registry import CREDITS

ValueTrend = CREDITS["value_trend"]

F64 = torch.float64
NAN = math.nan


def rewards(acc: list[float], **options) -> list[float]:
    change = torch.tensor([b - a for a, b in pairwise(acc)], dtype=F64)
    return trend(change, torch.zeros(len(change), dtype=torch.int64), **options).tolist()


def test_the_card() -> None:
    # .25 -> .5 at once; .5 -> .75 two steps away (.7^2), one step away (.7), at once
    assert rewards([0.25, 0.5, 0.5, 0.5, 0.75]) == pytest.approx([0.25, 0.1225, 0.175, 0.25], abs=1e-12)
    assert rewards([0.4] * 5) == [0.0] * 4
    assert rewards([1.0, 1.0, 0.5]) == pytest.approx([-0.35, -0.5], abs=1e-12)


def test_four_flat_steps_ahead_are_too_many() -> None:
    # the change is 4 steps on: .7^4; 5 on: nothing
    assert rewards([0.0, 0, 0, 0, 0, 1])[0] == pytest.approx(0.2401, abs=1e-12)
    assert rewards([0.0, 0, 0, 0, 0, 0, 1])[0] == 0.0


def loop(acc: list[float], decay: float, lookahead: int, tolerance: float) -> list[float]:
    """As the card says it: look on as long as it is flat."""
    out = []
    for j in range(len(acc) - 1):
        k = j
        while k < len(acc) - 1 and abs(acc[k + 1] - acc[k]) < tolerance and k - j <= lookahead:
            k += 1
        out.append((acc[k + 1] - acc[k]) * decay ** (k - j) if k < len(acc) - 1 and k - j <= lookahead else 0.0)
    return out


ACC = st.lists(st.sampled_from([0.0, 0.2, 0.200001, 0.6, 1.0]), max_size=9)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACC, min_size=1, max_size=4), st.sampled_from([0.0, 0.5, 0.7, 1.0]), st.integers(0, 5))
def test_it_agrees_with_a_loop(accs, decay, lookahead) -> None:
    """Several trajectories; a token before the first state, and two tokens to every step."""
    value, trajectory, expected = [], [], []
    for r, acc in enumerate(accs):
        value += [NAN, *(x for a in acc for x in (a, NAN))]
        trajectory += [r] * (1 + 2 * len(acc))
        own_loop = loop(acc, decay, lookahead, 1e-5)
        later = [sum(own_loop[j:]) for j in range(len(own_loop))] + [0.0] * (len(acc) > 0)
        expected += [sum(own_loop), *(x for y in later for x in (y, y))]
    actual = trend_return(torch.tensor(value, dtype=F64), torch.tensor(trajectory), decay, lookahead)
    assert actual.tolist() == pytest.approx(expected, abs=1e-12)


@given(ACC.filter(lambda acc: len(acc) > 0))
def test_without_look_ahead_the_rewards_telescope(acc) -> None:
    value = torch.tensor(acc, dtype=F64)
    actual = trend_return(value, torch.zeros(len(acc), dtype=torch.int64), lookahead=0, tolerance=1e-12)
    assert actual.tolist() == pytest.approx([acc[-1] - a for a in acc], abs=1e-12)


def test_the_outcome_is_added_before_whitening() -> None:
    # acc .25, .5 and nothing measured after; .2, .2, .8: d = 0 and .6, r = .42, .6
    forest = chains((1.0, [0.5] * 3, [None, 0.25, 0.5]), (0.0, [0.5] * 4, [0.2, 0.2, 0.8, None]))
    plain = [1.25, 1.25, 1.0, 1.02, 0.6, 0.0, 0.0]
    assert ValueTrend(whiten="none")(forest, {}, 0).tolist() == pytest.approx(plain, abs=1e-12)
    white = batch_whiten(torch.tensor(plain, dtype=F64), forest.path_trainable)
    assert ValueTrend()(forest, {}, 0).tolist() == pytest.approx(white.tolist(), abs=1e-12)


def test_attempts_without_values_have_their_outcome() -> None:
    forest = chains((1.0, [0.5] * 2, [None] * 2), (0.0, [0.5], [0.5]))
    assert ValueTrend(whiten="none")(forest, {}, 0).tolist() == [1.0, 1.0, 0.0]


# ---------------------------------------------------------------- errata
def test_a_steps_reward_is_its_own_tokens() -> None:
    """VSRM's code writes r_j on the first token of step j: in the return its other tokens lack it, and the step before
    has it. acc 0, 1 at tokens 0 and 2, then flat: step 0 earned the 1. Theirs: returns [1, 0, 0, 0]."""
    actual = trend_return(torch.tensor([0.0, NAN, 1.0, NAN], dtype=F64), torch.zeros(4, dtype=torch.int64))
    assert actual.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_refusals() -> None:
    with pytest.raises(GxpoError, match=r"credit=value_trend .* use rollout=monte_carlo_values"):
        ValueTrend()(chains((1.0, [0.5], [0.5])).replace(extras={}), {}, 0)
    for field, value in (("decay", 1.1), ("lookahead", -1), ("tolerance", 0.0), ("whiten", "group")):
        with pytest.raises(ConfigError, match=rf"credit\.{field}"):
            ValueTrend(**{field: value})
