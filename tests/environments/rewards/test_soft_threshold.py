"""The soft threshold of TempSamp-R1."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.rewards.shapes import shape

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.outcomes import soft_threshold
from gxpo.forest.forest import Forest

SoftThreshold = shape("soft_threshold")


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_cards_numbers():
    # .8 + .01 ln 1.2 = .801823; .8 - (e^.3 - 1) / (e - 1) = .596390; .8 - (e^.8 - 1) / (e - 1) = .086764
    found = soft_threshold(column(1, 0.9, 0.8, 0.5, 0.2, 0))
    assert found.tolist() == pytest.approx([0.801823, 0.800953, 0.8, 0.596390, 0.321546, 0.086764], abs=1e-6)


@given(st.floats(-1, 2), st.floats(0.1, 0.9), st.floats(0.001, 1), st.floats(0.1, 3))
def test_it_equals_the_formula(r, tau, above, below):
    found = float(soft_threshold(column(r), threshold=tau, above=above, below=below))
    if r >= tau:
        expected = tau + above * math.log(r - tau + 1)
    else:
        expected = tau - (math.exp(below * (tau - r)) - 1) / (math.exp(below) - 1)
    assert found == pytest.approx(expected, abs=1e-12)


def test_it_increases_is_continuous_and_keeps_what_is_unscored():
    x = torch.linspace(0, 1, 1001).double()
    y = soft_threshold(x)
    assert bool((y.diff() > 0).all()) and float(y.diff().max()) < 0.0015
    assert float(soft_threshold(column(0.8 - 1e-12))) == pytest.approx(0.8, abs=1e-11)
    assert math.isnan(float(soft_threshold(column(math.nan))))


def test_one_excellent_answer_sets_the_others_back_less():
    """Scores .8 .8 .3 1: the lead of 1 over .8 is gone but for a hundredth, and what is left is the failure."""
    records = [
        {"schema": "gxpo.rollouts/1", "group": "g", "id": str(i), "prompt": [1], "turns": [{"action": [2]}],
         "reward": r, "origin": "demonstration" if i == 3 else "policy"}
        for i, r in enumerate((0.8, 0.8, 0.3, 1.0))
    ]  # fmt: skip
    forest = Forest.from_records(records)
    shaped = forest.replace(outcome=SoftThreshold()(forest))
    plain, soft = (gxpo.method("grpo").advantages(f).tolist() for f in (forest, shaped))
    assert soft[0] > 1.9 * plain[0] > 0 and soft[2] < plain[2] < 0 and 0 < soft[3] < plain[3]


def test_the_method_has_the_reference_answer_in_the_group_and_the_shape():
    m = gxpo.method("tempsamp_r1")
    assert m.shapes["soft_threshold"] == SoftThreshold() and m.rollout.references == 1
    with pytest.raises(ConfigError, match="it is above 0"):
        SoftThreshold(above=0.0)
