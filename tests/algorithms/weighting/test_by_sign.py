"""Weights by the sign of the credit, and W-REINFORCE, which is made of them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of
from tests.battery import battery

import gxpo
from gxpo.algorithms.weighting import TokenWeight
from gxpo.algorithms.weighting.token_curves import by_sign
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.shape import Shape


def by_sign_weight(**options):
    return part_of("psr_nsr", "by_sign", **options)


VALUES = st.lists(st.sampled_from([-2.0, -1e-9, 0.0, 1e-9, 3.0]), max_size=12)


@settings(max_examples=40, deadline=None)
@given(VALUES, st.floats(0, 3), st.floats(0, 3))
def test_it_equals_a_loop(credit, positive, negative):
    found = by_sign(torch.tensor(credit, dtype=torch.float64), positive=positive, negative=negative)
    expected = [positive if a > 0 else negative if a < 0 else 1.0 for a in credit]
    assert found.tolist() == pytest.approx(expected) and found.dtype == torch.float64


def shaped(rewards, verdicts):
    """The rewards as the method's shape leaves them."""
    made = battery(0, sizes=(len(rewards),))
    scores = torch.tensor([math.nan if r is None else r for r in rewards], dtype=torch.float64)
    forest = made.replace(outcome=scores, success=torch.tensor(verdicts, dtype=torch.float64))
    return gxpo.method("psr_nsr").shaped(forest)


def times(m, forest):
    credit = m.advantages(forest)
    product = credit * m.token_weights(forest, credit)
    return [float(product[forest.path_of(r)[0]]) for r in range(forest.n_trajectories)]


def test_the_cards_numbers():
    forest = shaped([1.0, 0.0, 0.0, 0.0], [1, 0, 0, 0])
    assert times(gxpo.method("psr_nsr"), forest) == pytest.approx([0.1, -1, -1, -1])
    positive = gxpo.method("psr_nsr", {"weight.by_sign.positive": 1.0, "weight.by_sign.negative": 0.0})
    assert times(positive, forest) == [1.0, 0.0, 0.0, 0.0]
    negative = gxpo.method("psr_nsr", {"weight.by_sign.positive": 0.0})
    assert times(negative, forest) == [0.0, -1.0, -1.0, -1.0]


def test_the_shape_reads_the_verdict_and_leaves_unscored_ones_alone():
    forest = shaped([0.2, None, 7.0], [1, math.nan, 0])
    assert forest.outcome[0] == 1.0 and forest.outcome[1].isnan() and forest.outcome[2] == -1.0
    graded = battery(0, sizes=(2,)).replace(success=torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert Shape("signed", {"right": 2.0, "wrong": -0.5})(graded).tolist() == [2.0, -0.5]
    with pytest.raises(ConfigError, match="signed needs verdicts"):
        Shape("signed")(battery(0, sizes=(2,)).replace(success=torch.tensor([1.0, math.nan], dtype=torch.float64)))
    with pytest.raises(ConfigError, match="finite"):
        gxpo.method("psr_nsr", {"reward.shape.signed.wrong": -math.inf})


def test_equal_groups_learn_and_nothing_is_compared():
    m = gxpo.method("psr_nsr")
    assert m.credit.learns_from_equal_groups and list(m.shapes) == ["signed"]
    assert times(m, shaped([1.0] * 3, [1] * 3)) == pytest.approx([0.1] * 3)
    assert times(m, shaped([0.0] * 3, [0] * 3)) == pytest.approx([-1.0] * 3)


def test_it_goes_on_any_credit():
    forest = battery(1)
    plain = gxpo.method("grpo").advantages(forest)
    m = gxpo.method("grpo", {"weight.half": "token_weight", "weight.half.by": "credit", "weight.half.keep": "by_sign",
                             "weight.half.positive": 0.5})  # fmt: skip
    assert m.weights == {"half": TokenWeight("credit", "by_sign", options={"positive": 0.5})}
    assert torch.equal(m.advantages(forest), plain)
    found = m.token_weights(forest, plain)
    assert torch.equal(found, torch.where(plain > 0, 0.5, 1.0).double())


def test_errors():
    for wrong in ({"positive": -0.1}, {"negative": math.inf}, {"positive": math.nan}):
        with pytest.raises(ConfigError, match=rf"weight\.by_sign\.{next(iter(wrong))}(=| is)"):
            by_sign_weight(**wrong)
