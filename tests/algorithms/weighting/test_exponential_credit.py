"""Weights by the exponential of the credit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.objectives.conftest import grow_forest

import gxpo
from gxpo.algorithms.weighting.token_curves import exponential
from gxpo.base.errors import ConfigError


def exponential_credit_weight(**options):
    keys = RED | {f"weight.red.{k}": v for k, v in options.items()}
    return gxpo.method("rec", keys).weights["red"]


RED = {"weight.red": "token_weight", "weight.red.by": "credit", "weight.red.keep": "exponential"}


@given(st.lists(st.floats(-50, 1e6), min_size=1, max_size=8), st.floats(0.1, 10), st.floats(0.5, 1e6))
def test_a_loop_gives_the_same(credit, temperature, most) -> None:
    found = exponential(torch.tensor(credit, dtype=torch.float64), temperature=temperature, most=most)
    for w, a in zip(found.tolist(), credit, strict=True):
        wanted = most if a / temperature > 700 else min(math.exp(a / temperature), most)
        assert w == pytest.approx(wanted) and 0 <= w <= most


def test_it_multiplies_the_credit_that_is_there_already() -> None:
    forest = grow_forest([("a", 1, {"reward": 1.0}), ("a", 1, {"reward": 0.0})])
    m = gxpo.method("rec", RED)
    lp = torch.full((2,), -1.0, dtype=torch.float64, requires_grad=True)
    m.loss(forest, gxpo.PolicyTokens(lp, lp.detach())).value.backward()
    assert lp.grad is not None  # A = +-.5: -A e^A / 2
    assert lp.grad.tolist() == pytest.approx([-0.25 * math.exp(0.5), 0.25 * math.exp(-0.5)])
    for wrong in ({"temperature": 0.0}, {"most": math.inf}, {"most": 0.0}):
        with pytest.raises(ConfigError, match=r"weight\.red"):
            exponential_credit_weight(**wrong)
